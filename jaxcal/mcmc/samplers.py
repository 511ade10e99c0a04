r"""Settings of numpyro's MCMC samplers MALA, HMC and NUTS, for `jaxcal.mcmc_draws`.

With ``adapt`` the step size is tuned during warm-up towards the acceptance probability ``target``;
HMC and NUTS also tune a scale of each coordinate. Without ``adapt`` the step size is fixed.
"""

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.read.convert import flag, integer, number, real
from jaxcal.typing import Point, Scalar

Potential: TypeAlias = Callable[[Point], Scalar]  # minus a log density


def _positive(value: object) -> Float[Array, ""]:
    return number(value, "step", above=0).astype(jnp.result_type(float))


def _flag(value: object) -> bool:
    return flag(value, "adapt")


def _target(value: object) -> float:
    return real(value, "target", above=0, below=1)


class MALA(eqx.Module):
    r"""Metropolis-adjusted Langevin: propose :math:`y + \sigma^2 s(y) + \sqrt2 \sigma \epsilon`.

    s: score; epsilon: N(0, I). This is HMC with one leapfrog step of length :math:`\sqrt2 \sigma`.

    Args:
        step: sigma, in units of the target; with ``adapt``, the initial value.
        adapt: Whether to tune the step during warm-up.
        target: Mean acceptance probability towards which the step is tuned.

    Cost: one score per step.

    Source: Roberts and Tweedie (1996); the form of Glaser et al. (2023), Section 6.

    Example:
        >>> import jaxcal
        >>> sampler = jaxcal.mcmc.MALA(0.1, adapt=False)  # an option of `jaxcal.mcmc_draws`
    """

    step: Scalar = eqx.field(default=0.5, converter=_positive)
    adapt: bool = eqx.field(default=True, static=True, converter=_flag)
    target: float = eqx.field(default=0.574, static=True, converter=_target)
    leapfrog_length: ClassVar[float] = 2**0.5  # of the leapfrog step, in units of ``step``

    def kernel(self, potential: Potential) -> Any:
        steps = {
            "step_size": self.leapfrog_length * self.step,
            "num_steps": 1,
            "trajectory_length": None,
        }
        return _hamiltonian("HMC", potential, self, adapt_mass_matrix=False, **steps)


class HMC(eqx.Module):
    """Hamiltonian Monte Carlo with a fixed number of leapfrog steps per proposal.

    Args:
        step: Length of a leapfrog step, in units of the target; with ``adapt``, the initial one.
        leapfrogs: Number of leapfrog steps per proposal.
        adapt: Whether to tune the step, and scales of the coordinates, during warm-up.
        target: Acceptance probability towards which the step is tuned.

    Cost: ``leapfrogs`` scores per proposal.

    Example:
        >>> import jaxcal
        >>> sampler = jaxcal.mcmc.HMC(leapfrogs=4)  # an option of `jaxcal.mcmc_draws`
    """

    step: Scalar = eqx.field(default=0.5, converter=_positive)
    leapfrogs: int = eqx.field(
        default=8, static=True, converter=lambda count: integer(count, "leapfrogs")
    )
    adapt: bool = eqx.field(default=True, static=True, converter=_flag)
    target: float = eqx.field(default=0.8, static=True, converter=_target)

    def kernel(self, potential: Potential) -> Any:
        steps = {"num_steps": self.leapfrogs, "trajectory_length": None}
        return _hamiltonian("HMC", potential, self, **steps)


class NUTS(eqx.Module):
    """No-U-turn sampler, which adapts the number of leapfrog steps to each proposal.

    Args:
        step: Length of a leapfrog step, in units of the target; with ``adapt``, the initial one.
        depth: Largest depth of the tree of leapfrog steps, at most 30.
        adapt: Whether to tune the step, and scales of the coordinates, during warm-up.
        target: Acceptance probability towards which the step is tuned. A lower one gives longer
            steps, which are rejected at curved ridges and funnels, so that chains miss these.

    Cost: at most 2^depth scores per proposal. Chains are vectorized, so the slowest one determines
    the time of all.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> predictions, sampler = dist.Normal(jnp.arange(3.0), 1.0), jaxcal.mcmc.NUTS(depth=3)
        >>> draws = jaxcal.mcmc_draws(0, predictions, sampler=sampler, n_warmup=50, thin=10)
        >>> draws.sampler
        'NUTS'
    """

    step: Scalar = eqx.field(default=0.5, converter=_positive)
    depth: int = eqx.field(
        default=10, static=True, converter=lambda depth: integer(depth, "depth", most=30)
    )
    adapt: bool = eqx.field(default=True, static=True, converter=_flag)
    target: float = eqx.field(default=0.95, static=True, converter=_target)

    def kernel(self, potential: Potential) -> Any:
        return _hamiltonian("NUTS", potential, self, max_tree_depth=self.depth)


def _hamiltonian(
    name: str, potential: Potential, sampler: MALA | HMC | NUTS, **settings: Any
) -> Any:
    import numpyro.infer

    shared = {
        "step_size": sampler.step,
        "adapt_step_size": sampler.adapt,
        "adapt_mass_matrix": sampler.adapt,
        "target_accept_prob": sampler.target,
    }
    return getattr(numpyro.infer, name)(potential_fn=potential, **(shared | settings))
