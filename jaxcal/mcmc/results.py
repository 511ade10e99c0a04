"""Draws with the evidence for and against them."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.mcmc.diagnostics import LEAST
from jaxcal.models import Draws
from jaxcal.models.arrays import SETTLED
from jaxcal.results import FEW, Result, Sentences


class McmcDraws(Result):
    """m draws from each of n predictions, which `jaxcal.skce_test` takes as they are.

    Attributes:
        samples: Draws [n, m, d], in units of the targets; neighbours along m come from different
            chains.
        rhat: Rank-normalized split R-hat of the steps after warm-up and at least of the last half
            of all (at most 500 states of each chain), the worst coordinate, [n]; NaN for fewer
            than 4 states.
        acceptance: Mean acceptance probability over these steps, [n].
        ess: Effective size of the m draws, the worst coordinate, [n]; NaN for fewer than 10 draws
            a chain, too few to tell.
        divergences: Steps after warm-up whose energy error was beyond 1000, [n].
        step: Mean step at the end, in units of the target divided by the adapted scale, [n].
        sampler: Name of the sampler.
        chains: Number of chains.
        warmup: Number of steps of warm-up of each chain.
        steps: Number of steps of each chain.
        event_shape: Shape of one target.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> predictions = dist.Normal(jnp.arange(3.0), 1.0)
        >>> draws = jaxcal.mcmc_draws(0, predictions, n_draws=8, n_warmup=50, thin=10)
        >>> draws.samples.shape, draws.draws.samples.shape
        ((3, 8, 1), (3, 8))
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
        """The samples as `jaxcal.Draws`, in the shape of the targets, with R-hat, infinite where
        steps diverged."""
        rhat = jnp.where(self.divergences > 0, jnp.inf, self.rhat)
        return Draws(self.samples.reshape(*self.samples.shape[:-1], *self.event_shape), rhat)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of a batch of sets of draws; () for one."""
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
