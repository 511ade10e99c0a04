"""E3: seven CIFAR-10 networks and the uniform model, on all images and on subsets of 500."""

import csv
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.ckce import LowRank, ckce, skill
from jaxcal.measures import confidences, reliability

sys.path.insert(0, str(Path(__file__).parents[1]))
from reference.classes import absolute, canonical_error
from reference.joint import jkce
from reference.ranking import subsample_trials

SIZE = 500
# as many as the paper ranks: a DenseNet, a ResNet, a small network and the uniform model
FOUR = ("densenet121", "resnet_orig", "mobilenet_v2", "uniform")


def load(folder: Path):
    """Names, probabilities [M, n, 10] with rows that sum to 1, and labels [n]."""
    labels = np.loadtxt(folder / "labels.csv", dtype=np.int32)
    labels = labels - labels.min()  # the published file counts from 1
    files = sorted(path for path in folder.glob("*.csv") if path.name != "labels.csv")
    models = []
    for path in files:
        q = np.loadtxt(path, delimiter=",", dtype=np.float64)
        models.append(q / q.sum(axis=1, keepdims=True))
    names = [path.stem for path in files] + ["uniform"]
    stack = np.stack([*models, np.full((len(labels), 10), 0.1)])
    return names, jnp.asarray(stack, jnp.float32), jnp.asarray(labels)


def measures(shared):
    def own_bandwidth(q, y):
        return ckce(q, y).estimate

    def shared_bandwidth(q, y):
        return ckce(q, y, bandwidth=shared).estimate

    def joint(q, y):
        return jkce(q, y).unbiased

    def simplex(q, y):
        return canonical_error(q, y, bins=3, distance=absolute).mean

    def confidence(q, y):
        return reliability(*confidences(q, y), bins=15).ece

    def brier(q, y):
        return skill(q, y).brier

    def cross_entropy(q, y):
        return skill(q, y).cross_entropy

    return {
        "CKCE": own_bandwidth,
        "CKCE, shared": shared_bandwidth,
        "JKCE": joint,
        "ECE": simplex,
        "confidence ECE": confidence,
        "Brier": brier,
        "cross-entropy": cross_entropy,
    }


def on_all(name, measure, models, labels, shared):
    """A measure on all images: CKCE by incomplete Cholesky, the rest as they are."""
    if name.startswith("CKCE"):
        width = shared if "shared" in name else None
        values = [
            ckce(q, labels, solver=LowRank(256, tile=2000), bandwidth=width).estimate
            for q in models
        ]
    else:
        values = [measure(q, labels) for q in models]
    return np.asarray(values, float)


def run(folder: Path, path: Path, subsets: int, seed: int) -> None:
    """One row a measure and model: the value on all images, mean and spread over subsets, how
    often a subset gave the full order of all models, and the mean share of pairs in order."""
    names, models, labels = load(folder)
    shared = pooled(models)
    chosen = measures(shared)
    key = jax.random.key(seed)
    rows = []
    for name, measure in chosen.items():
        whole = on_all(name, measure, models, labels, shared)
        order = np.argsort(whole)
        trials = subsample_trials(key, models, labels, {name: measure}, size=SIZE, trials=subsets)
        values = np.asarray(trials.values[:, 0])
        ranked = values[:, order]
        i, j = np.triu_indices(len(names), 1)
        agree = float(np.mean(ranked[:, i] < ranked[:, j]))
        exact, among, four = (
            float(trials.in_order(name, [k for k in order if names[k] in chosen]).mean())
            for chosen in (names, names[:-1], FOUR)
        )
        first = float(np.mean(np.argmin(values, axis=1) == order[0]))
        for k in range(len(names)):
            rows.append(
                {
                    "measure": name,
                    "model": names[k],
                    "rank": int(np.where(order == k)[0][0]) + 1,
                    "all_images": f"{whole[k]:.6g}",
                    "subset_mean": f"{values[:, k].mean():.6g}",
                    "subset_sd": f"{values[:, k].std():.6g}",
                    "exact_order": f"{exact:.3f}",
                    "exact_order_of_networks": f"{among:.3f}",
                    "exact_order_of_four": f"{four:.3f}",
                    "pairs_in_order": f"{agree:.4f}",
                    "best_model_first": f"{first:.3f}",
                    "subsets": subsets,
                }
            )
        print(f"{name:16s} exact order {exact:.3f}, pairs {agree:.3f}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
