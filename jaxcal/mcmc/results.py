r"""MCMC draws with their diagnostics: R-hat and effective sizes.

Both diagnostics use normal scores of ranks, so that they allow heavy tails and infinite variances:
:math:`z = \Phi^{-1}((r - 3/8) / (S + 1/4))` for a value with (average) rank r among all S values.
Source: Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Rank-normalization, folding, and
localization: an improved R-hat.
"""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jax.scipy.stats import rankdata
from jaxtyping import Array, Float, Int

from jaxcal.read import Draws
from jaxcal.read.predictions import SETTLED
from jaxcal.results import FEW, Result, Sentences

LEAST = 10  # fewest draws per chain for an effective size: each half has two lags or more


def split_rhat(path: Float[Array, "t c *rest"]) -> Float[Array, " *rest"]:
    r"""Return the rank-normalized split R-hat of t states of each of c chains, [*rest].

    It is the larger of two :math:`\sqrt{((L - 1) W + B) / (L W)}`, for normal scores of the values
    and of |value - median|. Chains are split into halves of length L; W is the mean variance within
    halves, B is L times the variance of the means of halves. NaN for t < 4 and if a value is NaN;
    infinite if all halves are constant.
    Source: Vehtari et al. (2021), Section 4."""
    if path.shape[0] < 4:
        return jnp.full(path.shape[2:], jnp.nan, path.dtype)
    halves = _halves(path)
    folded = jnp.abs(halves - jnp.median(halves, axis=(0, 1), keepdims=True))
    return jnp.maximum(_rhat(_ranked(halves)), _rhat(_ranked(folded)))


def effective_size(draws: Float[Array, "t c *rest"]) -> Float[Array, " *rest"]:
    """Return the bulk effective sample size of t draws from each of c chains, [*rest].

    It is computed from ranks of split chains, by Geyer's monotone sequence. It can exceed t c for
    antithetic draws, up to t c log10(t c). NaN if t < `LEAST`, if a draw is NaN, or if all draws
    are equal. Source: Vehtari et al. (2021), Section 3 and Appendix A."""
    if draws.shape[0] < LEAST:
        return jnp.full(draws.shape[2:], jnp.nan, draws.dtype)
    z = _ranked(_halves(draws))
    t, c = z.shape[:2]
    means = jnp.mean(z, axis=0, keepdims=True)
    spectrum = jnp.abs(jnp.fft.rfft(z - means, 2 * t, axis=0)) ** 2
    covariance = jnp.mean(jnp.fft.irfft(spectrum, 2 * t, axis=0)[:t], axis=1) / t
    within = covariance[0] * t / (t - 1)
    total = covariance[0] + jnp.var(means[0], axis=0, ddof=1)
    correlation = (1 - (within[None] - covariance) / total[None]).at[0].set(1.0)
    lags = 2 * ((t - 3) // 2 + 1)
    even, odd = correlation[0:lags:2], correlation[1:lags:2]
    pairs = even + odd
    # sum pairs before the first one that is not positive, and add the even lag of that one
    positive = jnp.cumprod(pairs[:-1] > 0, axis=0) == 1
    sums = jnp.sum(jnp.where(positive, jax.lax.cummin(pairs[:-1], axis=0), 0), axis=0)
    last = jnp.sum(positive, axis=0, dtype=int)[None]
    end, pair = (jnp.take_along_axis(side, last, axis=0)[0] for side in (even, pairs))
    time = -1 + 2 * sums + jnp.where((end > 0) | (pair >= 0), end, 0.0)
    size = t * c / jnp.where(time < (least := 1 / math.log10(t * c)), least, time)
    return jnp.where(total > 0, size, jnp.nan)


def _halves(path: Array) -> Array:
    """Split each chain into two halves, [t // 2, 2 c, ..]; drop the middle state of an odd t."""
    half = path.shape[0] // 2
    return jnp.concatenate([path[:half], path[-half:]], axis=1)


def _ranked(values: Array) -> Array:
    """Return normal scores of average ranks over the first two axes; all NaN if a value is NaN."""
    flat = values.reshape(values.shape[0] * values.shape[1], -1)
    ranks = rankdata(flat, axis=0).astype(values.dtype)
    return ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(values.shape)


def _rhat(z: Array) -> Array:
    length = z.shape[0]
    within = jnp.mean(jnp.var(z, axis=0, ddof=1), axis=0)
    between = jnp.var(jnp.mean(z, axis=0), axis=0, ddof=1)
    # infinite only for a variance of 0: NaN variances give NaN
    still = within == 0
    ratio = jnp.where(still, jnp.inf, between / jnp.where(still, 1, within))
    return jnp.sqrt((length - 1) / length + ratio)


class McmcDraws(Result):
    """Result of `mcmc_draws`: m draws from each of n predictions, which `jaxcal.skce_test` takes.

    Attributes:
        samples: Draws [n, m, d], in units of the targets; successive draws along m come from
            different chains.
        rhat: Largest rank-normalized split R-hat over coordinates, [n]. It uses at most 500 evenly
            spaced states of each chain, from the steps after warm-up or from the last half of all
            steps, whichever are more. NaN for fewer than 4 states.
        acceptance: Mean acceptance probability over the same steps, [n].
        ess: Smallest effective size of the m draws over coordinates, [n]; NaN for fewer than 10
            draws per chain.
        divergences: Number of steps of all chains after warm-up with energy error > 1000, [n].
        step: Final ``step`` of the sampler, mean over chains, in units of the adapted scale, [n].
        sampler: Name of the sampler.
        chains: Number of chains.
        warmup: Number of steps of warm-up of each chain.
        steps: Number of steps of each chain.
        event_shape: Shape of one target.
    """

    _scalar: ClassVar[str] = "samples"
    _long: ClassVar[tuple[str, ...]] = ("samples",)
    _rows: ClassVar[tuple[str, ...]] = ("rhat", "acceptance", "ess", "divergences", "step")

    samples: Float[Array, "n m d"]
    rhat: Float[Array, " n"]
    acceptance: Float[Array, " n"]
    ess: Float[Array, " n"]
    divergences: Int[Array, " n"]
    step: Float[Array, " n"]
    sampler: str = eqx.field(static=True)
    chains: int = eqx.field(static=True)
    warmup: int = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    event_shape: tuple[int, ...] = eqx.field(static=True)

    @property
    def draws(self) -> Draws:
        """``samples`` as `jaxcal.Draws` [n, m, *event_shape], with ``rhat``, which is set to
        infinity for predictions with divergences."""
        rhat = jnp.where(self.divergences > 0, jnp.inf, self.rhat)
        return Draws(self.samples.reshape(*self.samples.shape[:-1], *self.event_shape), rhat)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of ``samples`` before [n, m, d], as from ``jax.vmap``; () without any."""
        return self.samples.shape[:-3]

    def _sentences(self) -> Sentences:
        rhat, accepted = np.asarray(self.rhat), np.asarray(self.acceptance)
        broken = int(np.sum(~np.isfinite(np.asarray(self.samples)).all(axis=(-2, -1))))
        divergences = np.asarray(self.divergences)
        divergent, n = int(np.sum(divergences > 0)), divergences.size
        short = self.steps < 8
        unsettled = float(np.mean(~(rhat <= SETTLED)))
        low, high = float(np.mean(accepted < 0.1)), float(np.mean(accepted > 0.99))
        return [
            (f"draws of {broken} predictions are NaN or infinite [nonfinite-draws]", broken > 0),
            (
                f"{self.steps} steps are too few to see whether the chains have settled; where "
                f"they have not, SKCE with these draws loses its level [few-steps]",
                short,
            ),
            (
                f"the chains of {unsettled:.0%} of the predictions have not settled (R-hat above "
                f"{SETTLED}): SKCE with these draws can reject calibrated models; make more steps, "
                f"adapt the step, or use kccsd_test, which needs no draws [unsettled-chains]",
                not short and unsettled > FEW,
            ),
            (
                f"for {low:.0%} of the predictions fewer than 1 step in 10 is accepted: the step "
                f"is too large, or the start is far from the density [steps-too-large]",
                low > FEW,
            ),
            (
                f"for {high:.0%} of the predictions nearly every step is accepted and the chains "
                f"have not settled: the step is too small [steps-too-small]",
                not short and high > FEW and unsettled > FEW,
            ),
            (
                f"the chains of {divergent} of {n} predictions diverged ({divergences.sum()} "
                f"steps): the step is too large for some places of the density, which the draws "
                f"may lack; raise target, as in NUTS(target=0.99), change the coordinates, or use "
                f"kccsd_test, which needs no draws [divergent-steps]",
                divergent > 0,
            ),
        ]

    def _batch_lines(self) -> list[str]:
        return self._lines()

    def _lines(self) -> list[str]:
        n, m, d = self.samples.shape[-3:]
        batch = self.batch_shape
        return [
            f"{m} draws of {d} coordinates from each of {n} predictions by {self.sampler}"
            + (f", batch shape {batch}" if batch else ""),
            f"  {self.chains} chains of {self.steps} steps, {self.warmup} of them warm-up",
            f"  R-hat       {_range(self.rhat)}",
            f"  acceptance  {_range(self.acceptance)}",
            f"  effective   {_range(self.ess)} draws"
            + ("" if m >= LEAST * self.chains else f" (told from {LEAST} draws a chain on)"),
        ]


def _range(values: Array) -> str:
    numbers = np.asarray(values)[~np.isnan(np.asarray(values))]
    if not numbers.size:
        return "unknown"
    return f"median {np.median(numbers):.3g}, from {numbers.min():.3g} to {numbers.max():.3g}"
