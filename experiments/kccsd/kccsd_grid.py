"""Every series of the paper on one data set, in one walk over pairs.

A series is a kernel on predictions times a statistic of the targets. Seven kernels and five
statistics make all of them, so a block of each is computed once and their products are the
channels of one statistic: the engine's bootstrap then serves all series with the same signs.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal.divergences import (
    MMD,
    Fisher,
    GaussianFisher,
    GaussianKernelFisher,
    KernelFisher,
    Wasserstein,
)
from jaxcal.divergences.vectors import gram_block
from jaxcal.fit import testing
from jaxcal.fit.options import stein_specification
from jaxcal.kernels import IMQ, Gaussian, points
from jaxcal.kernels.means.dispatch import kernel_means
from jaxcal.nulls import Wild
from jaxcal.statistics.skce import KernelResidual, Observed
from jaxcal.statistics.stein import Stein
from jaxcal.typing import Features, Pairwise

DRAWS = 10  # base points, and draws of each prediction, of the approximate series
DIVERGENCES = {
    ("GFD", "exact"): GaussianFisher(),
    ("KGFD", "exact"): GaussianKernelFisher(),
    ("MMD", "exact"): MMD(),
    ("W2", "exact"): Wasserstein(),
    ("GFD", "approx"): Fisher(),
    ("KGFD", "approx"): KernelFisher(),
    ("MMD", "approx"): MMD(n_samples=DRAWS),
}
TARGETS = {"Gaussian": Gaussian(), "IMQ": IMQ()}
TILE = 256  # of many channels at once
FORM = "diagonal"  # of the preconditioner, in the series beyond the paper's


class Series(NamedTuple):
    test: str  # KCCSD, SKCE, or KCCSD with its preconditioner
    divergence: str
    target: str
    exactness: str


def series() -> list[Series]:
    """The paper's 24 series, and the preconditioned KCCSD."""
    named = []
    for divergence, exactness in DIVERGENCES:
        named += [Series("KCCSD", divergence, target, exactness) for target in TARGETS]
        named += [
            Series("SKCE", divergence, target, exactness)
            for target in TARGETS
            if (exactness, target) != ("exact", "IMQ")  # the paper has no closed form for it
        ]
    return [*named, Series("preconditioned KCCSD", "GFD", "Gaussian", "approx")]


class Grid(eqx.Module):
    """Pairwise statistic whose channels are products of a kernel on predictions and a statistic of
    the targets; features are a tuple of those of each kernel and of each statistic."""

    kernels: tuple[Any, ...]  # (kernel, distance)
    statistics: tuple[Pairwise, ...]  # of the targets
    layout: tuple[tuple[int, int], ...] = eqx.field(static=True)

    @property
    def channels(self) -> int:
        return len(self.layout)

    def block(self, rows: Features, cols: Features) -> jax.Array:
        k = [
            gram_block(kernel, divergence, r, c)
            for (kernel, divergence), r, c in zip(self.kernels, rows[0], cols[0], strict=True)
        ]
        h = [
            statistic.block(r, c)[0]
            for statistic, r, c in zip(self.statistics, rows[1], cols[1], strict=True)
        ]
        return jnp.stack([k[i] * h[j] for i, j in self.layout])

    def diagonal(self, features: Features) -> jax.Array:
        def alone(one: Features) -> jax.Array:
            single = jax.tree.map(lambda leaf: leaf[None], one)
            return self.block(single, single)[:, 0, 0]

        return jnp.moveaxis(jax.vmap(alone)(features), 0, 1)


def assemble(key: jax.Array, predictions: Any, targets: jax.Array) -> tuple[Grid, Features]:
    """All series of one data set, put together by the library's own front end."""
    node_key, feature_key, mean_key = jax.random.split(key, 3)
    keys = jnp.stack([node_key, feature_key])
    kernels, described = {}, {}
    for name, divergence in DIVERGENCES.items():
        spec = stein_specification(targets, divergence=divergence, n_nodes=DRAWS, standardize=False)
        prepared, featured = spec.fit(keys, predictions, targets)
        kernels[name] = (prepared.prediction_kernel, prepared.embedding.divergence)
        described[name] = featured.features.predictions
    statistics, features = {}, {}
    for test, form in (("KCCSD", None), ("preconditioned KCCSD", FORM)):
        spec = stein_specification(targets, n_nodes=DRAWS, precondition=form, standardize=False)
        prepared, featured = spec.fit(keys, predictions, targets)
        for target, kernel in TARGETS.items():
            kernel = points.with_bandwidth(kernel, prepared.bandwidths["target"])
            statistics[test, target] = Stein(kernel, dimension=targets.shape[1])
            features[test, target] = featured.features.residual
    for one in series():
        if one.test != "SKCE" or _statistic(one) in statistics:
            continue
        kernel = points.with_bandwidth(TARGETS[one.target], prepared.bandwidths["target"])
        # draws of their own: the weight of a pair must not depend on the errors of its means
        m = DRAWS if one.exactness == "approx" else None
        means = kernel_means(kernel, predictions, key=mean_key, n_samples=m)
        statistics[_statistic(one)] = KernelResidual(means.empty())
        features[_statistic(one)] = Observed(targets, means.features)
    names = [(one.divergence, one.exactness) for one in series()]
    layout = [
        (list(kernels).index(name), list(statistics).index(_statistic(one)))
        for name, one in zip(names, series(), strict=True)
    ]
    grid = Grid(tuple(kernels.values()), tuple(statistics.values()), tuple(layout))
    return grid, (tuple(described.values()), tuple(features.values()))


def _statistic(one: Series) -> tuple[str, ...]:
    return one[:1] + one[2:] if one.test == "SKCE" else (one.test, one.target)


def p_values(
    key: jax.Array, mean: jax.Array, variance: jax.Array, targets: jax.Array, n_draws: int
) -> jax.Array:
    """p-value of every series for one data set of Gaussian predictions, all [n, d]."""
    assemble_key, null_key = jax.random.split(key)
    predictions = dist.Normal(mean, jnp.sqrt(variance)).to_event(1)
    grid, features = assemble(assemble_key, predictions, targets)
    return testing.apply(Wild(n_draws), null_key, grid, features, tile=TILE)[0].p_value[1:]
