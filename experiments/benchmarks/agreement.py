"""SKCE of binary predictions beside the package probcal: pip install probcal, then
python experiments/benchmarks/agreement.py. Prints relative differences in float64."""

import sys
from pathlib import Path

import jax
import numpy as np


def main():
    """Unbiased, biased and bootstrap values on shared inputs, kernels and bandwidths."""
    try:
        from probcal import metrics
    except ImportError:
        sys.exit("probcal is not installed: pip install probcal")
    jax.config.update("jax_enable_x64", True)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from reference.nulls import Multinomial

    from jaxcal import skce_test
    from jaxcal.divergences import TotalVariation
    from jaxcal.kernels import Gaussian, Laplace

    rng = np.random.default_rng(0)
    print("n     data           kernel    unbiased   biased     p: probcal  jaxcal")
    for n in (50, 1000):
        for data, bend in (("calibrated", 1.0), ("overconfident", 0.5)):
            logit = rng.normal(size=n) * 1.5
            p, y = 1 / (1 + np.exp(-logit)), rng.random(n) < 1 / (1 + np.exp(-bend * logit))
            for name, kernel in (("laplace", Laplace), ("gaussian", Gaussian)):
                options = {"kernel": name, "bandwidth": 0.3}
                ours = skce_test(
                    jax.random.key(0),
                    p,
                    y.astype(int),
                    divergence=TotalVariation(),  # of two classes: |p - q|
                    prediction_kernel=kernel(0.3),
                    null=Multinomial(999),
                )
                theirs = metrics.skce_test(y.astype(int), p, n_boot=999, **options)
                differences = [
                    abs(float(getattr(ours, mine)) / value - 1)
                    for mine, value in (
                        ("estimate", theirs.statistic),
                        ("biased", metrics.skce(y.astype(int), p, estimator="biased", **options)),
                    )
                ]
                print(
                    f"{n:<5} {data:14} {name:9} {differences[0]:.1e}    {differences[1]:.1e}    "
                    f"{theirs.p_value:.3f}       {float(ours.p_value):.3f}"
                )


if __name__ == "__main__":
    main()
