"""SKCE of seven CIFAR-10 networks with the published kernel, at n = 10,000 and without an n x n
array: python experiments/cifar10_skce/run.py --data FOLDER [--quick] [--output FILE].

The kernel is exp(-TV / median TV) 1[y = y'], the median over all pairs of the 10,000 predictions.
FOLDER (or the environment variable JAXCAL_CIFAR10) holds labels.csv and one file of probabilities a
network, from the repository of the paper named in README.md. Rows are appended; finished ones stay.
"""

import argparse
import csv
import os
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
NETWORKS = [
    "densenet121",
    "googlenet",
    "inception_v3",
    "mobilenet_v2",
    "resnet18",
    "resnet_orig",
    "vgg16_bn",
]
PUBLISHED = {  # biased, unbiased, from the pairs (1, 2), (3, 4), ..
    "resnet18": (2.7614450993714907e-4, 2.625240589747678e-4, 3.565449804289092e-4),
    "googlenet": (2.7592939340394272e-5, 1.6866938444902392e-5, -4.0512499082590156e-4),
}
COLUMNS = ["network", "biased", "unbiased", "linear", "median_tv", "p_value", "relative_difference"]


def read(folder, network, n=None):
    """Probabilities [n, 10] in float64 and classes [n]."""
    import numpy as np

    p = np.loadtxt(folder / f"{network}.csv", delimiter=",", max_rows=n)
    # the file counts classes from 1
    return p, np.loadtxt(folder / "labels.csv", dtype=int, max_rows=n) - 1


def measure(p, labels):
    """Estimates, bandwidth and p-value of one network, in float64."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from scipy.spatial.distance import pdist

    from jaxcal.divergences import TotalVariation
    from jaxcal.kernels import Laplace
    from jaxcal.nulls import Wild
    from jaxcal.skce import block_estimates, skce_test

    # float32 softmax outputs do not sum to one in float64; the published values leave them so
    median, p = np.median(pdist(p, "cityblock")) / 2, jnp.asarray(p)
    options = {"divergence": TotalVariation(), "prediction_kernel": Laplace(median)}
    key = jax.random.key(0)
    result = skce_test(key, p, labels, null=Wild(999), **options)
    linear = block_estimates(key, p, labels, size=2, **options)
    return {
        "biased": float(result.biased),
        "unbiased": float(result.estimate),
        "linear": float(linear.estimate),
        "median_tv": float(median),
        "p_value": float(result.p_value),
    }


def difference(network, measured):
    """The largest relative difference from the published values, or nothing."""
    if network not in PUBLISHED:
        return ""
    ours = (measured["biased"], measured["unbiased"], measured["linear"])
    pairs = zip(ours, PUBLISHED[network], strict=True)
    return f"{max(abs(a / b - 1) for a, b in pairs):.2g}"


def main(arguments=None):
    """Measure the networks that the output file lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("JAXCAL_CIFAR10"))
    parser.add_argument("--quick", action="store_true", help="400 images of one network")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.data is None or not (Path(chosen.data) / "labels.csv").exists():
        print("cifar10_skce: skipped. Say --data FOLDER (or JAXCAL_CIFAR10) with labels.csv and")
        print("the networks' files; README.md says where to get them.")
        return None
    import jax

    jax.config.update("jax_enable_x64", True)
    default = FOLDER / "quick" / "results.csv" if chosen.quick else FOLDER / "results.csv"
    path = chosen.output or default
    path.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if path.exists():
        with path.open(newline="") as file:
            done = {row["network"] for row in csv.DictReader(file)}
    else:
        path.write_text(",".join(COLUMNS) + "\n")
    for network in NETWORKS[:1] if chosen.quick else NETWORKS:
        if network in done:
            continue
        start = time.perf_counter()
        result = measure(*read(Path(chosen.data), network, 400 if chosen.quick else None))
        gap = "" if chosen.quick else difference(network, result)
        cells = [network, *(f"{result[name]:.16g}" for name in COLUMNS[1:6]), gap]
        with path.open("a") as file:
            file.write(",".join(cells) + "\n")
        print(f"{network:14s}", *cells[1:], f"{time.perf_counter() - start:.0f} s", flush=True)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
