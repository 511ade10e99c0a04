"""Three simulators with exact posteriors of two parameters, "a" and "b", and nine faults of these.

- gaussian: theta ~ N(0, I), x_1 = a + .8 b + .5 e, x_2 = b + .8 e.
- modes: a = s (1.5 + .5 e) for a sign s, b ~ N(0, 1), x_1 = s a + .3 e, x_2 = b + .8 a + .6 e.
- rates: positive, a ~ Gamma(2), b = a r with r ~ Gamma(3); x are the logarithms of waiting times,
  Gamma(3) / a and Gamma(4) / r.

With ``tie`` = 0 for 1 (.8 in the first two is multiplied by it, and b = a^tie r) a and b are
independent given x. All are one program, as simulator, fault, size and tie are arrays.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, polygamma
from jaxtyping import Array, Float

from jaxcal.typing import Key

SIMULATORS = ("gaussian", "modes", "rates")
FAULTS = (
    "right",
    "narrow",  # deviation of b times size
    "wide",  # the same
    "shifted",  # b too high by size deviations
    "correlation",  # b reflected at its mean, so that the correlation has the other sign
    "swapped",  # the density of (b, a)
    "dropped",  # next to no density where a is below 0, or below its mean: modes, the others
    "ignores",  # the posterior given x_1 alone
    "prior",
    "tails",  # Student t, 4 degrees of freedom, of the same deviation
)
PENALTY = 40.0
PRIOR_DRAWS = 138  # as many as a check draws of a prior that can be sampled
SHAPES = np.asarray([[2.0, 3.0], [3.0, 4.0]])  # of the prior, and of the waiting times


class Law(NamedTuple):
    """Two components of free parameters u = center + root z, with shares, and z standard normal,
    or logarithms of Gamma(shape) where ``skewed``."""

    centers: Float[Array, "2 2"]
    roots: Float[Array, "2 2 2"]
    log_shares: Float[Array, " 2"]
    shapes: Float[Array, " 2"]
    skewed: Array

    def log_density(self, u: Array, tails: Array) -> Array:
        gaps = u[None] - self.centers
        z = jnp.linalg.solve(self.roots, gaps[:, :, None])[:, :, 0]
        mean, deviation = self._of_noise()
        standard = (z - mean[None]) / deviation[None]
        noise = jnp.where(self.skewed, self.shapes[None] * z - jnp.exp(z), -(z**2) / 2)
        noise = jnp.where(tails, -2.5 * jnp.log1p(standard**2 / 2), noise)
        sizes = jnp.log(jnp.abs(jnp.linalg.det(self.roots)))
        return jax.nn.logsumexp(jnp.sum(noise, axis=1) - sizes + self.log_shares)

    def moments(self) -> tuple[Array, Array]:
        """Mean and deviation of each free parameter."""
        mean, deviation = self._of_noise()
        means = self.centers + self.roots @ mean
        variances = jnp.sum((self.roots * deviation[None, None]) ** 2, axis=2)
        share = jnp.exp(self.log_shares)[:, None]
        middle = jnp.sum(share * means, axis=0)
        about = (means - middle[None]) ** 2
        return middle, jnp.sqrt(jnp.sum(share * (variances + about), axis=0))

    def _of_noise(self) -> tuple[Array, Array]:
        variance = jnp.where(self.skewed, polygamma(1, self.shapes), 1.0)
        return jnp.where(self.skewed, digamma(self.shapes), 0.0), jnp.sqrt(variance)


def law(simulator: Array, x: Array, used: Array, tie: Array) -> Law:
    """The exact law given those numbers of x that are ``used`` [2]."""
    each = [of(x, used, tie) for of in (_gaussian, _modes, _rates)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves)[simulator], *each)


def _linear(precision: Array, information: Array) -> tuple[Array, Array, Array]:
    """Centre, root of the covariance, and log evidence up to a constant."""
    covariance = jnp.linalg.inv(precision)
    center = covariance @ information
    evidence = (information @ center - jnp.linalg.slogdet(precision)[1]) / 2
    return center, jnp.linalg.cholesky(covariance), evidence


def _gaussian(x: Array, used: Array, tie: Array) -> Law:
    rows = jnp.eye(2).at[0, 1].set(0.8 * tie)
    inverse = used / jnp.asarray([0.25, 0.64])
    precision = jnp.eye(2) + rows.T @ (inverse[:, None] * rows)
    center, root, _ = _linear(precision, rows.T @ (inverse * x))
    two = jnp.stack([center, center]), jnp.stack([root, root])
    return Law(*two, jnp.log(jnp.full(2, 0.5)), jnp.ones(2), jnp.asarray(False))


def _modes(x: Array, used: Array, tie: Array) -> Law:
    def component(sign: float) -> tuple[Array, Array, Array]:  # of (|a|, b)
        row = jnp.stack([0.8 * tie * sign, jnp.ones(())])
        inverse = used / jnp.asarray([0.09, 0.36])
        first = jnp.asarray([1.0, 0.0])
        precision = jnp.diag(jnp.asarray([4.0, 1.0])) + inverse[0] * jnp.outer(first, first)
        information = jnp.asarray([6.0, 0.0]) + inverse[0] * x[0] * first + inverse[1] * x[1] * row
        turned = jnp.asarray([sign, 1.0])
        center, root, evidence = _linear(precision + inverse[1] * jnp.outer(row, row), information)
        return turned * center, turned[:, None] * root, evidence

    centers, roots, evidence = (
        jnp.stack(both) for both in zip(component(1.0), component(-1.0), strict=True)
    )
    shares = jax.nn.log_softmax(evidence)
    return Law(centers, roots, shares, jnp.ones(2), jnp.asarray(False))


def _rates(x: Array, used: Array, tie: Array) -> Law:
    rates = jnp.log1p(used * jnp.exp(jnp.minimum(x, 30.0)))
    root = jnp.eye(2).at[1, 0].set(tie)
    center = -root @ rates
    shapes = SHAPES[0] + used * SHAPES[1]
    two = jnp.stack([center, center]), jnp.stack([root, root])
    return Law(*two, jnp.log(jnp.full(2, 0.5)), shapes, jnp.asarray(True))


class Posterior(eqx.Module):
    """``log_prob(theta, x)``: the exact one of a simulator with a fault; indices are arrays.

    ``of`` [2] says which parameter is narrow or shifted, as 0 and 1.
    """

    simulator: Array
    fault: Array
    size: Array
    tie: Array
    of: Array

    def __call__(self, theta: Array, x: Array) -> Array:
        positive = self.simulator == 2
        u = jnp.where(positive, jnp.log(jnp.where(positive, theta, 1.0)), theta)
        return self.free(u, x) - jnp.where(positive, jnp.sum(u), 0.0)

    def free(self, u: Array, x: Array) -> Array:
        """Log density of free parameters: those of rates are logarithms."""

        def has(*names: str) -> Array:
            return jnp.any(self.fault == jnp.asarray([FAULTS.index(name) for name in names]))

        used = jnp.stack([~has("prior"), ~has("prior", "ignores")]).astype(u.dtype)
        exact = law(self.simulator, x, used, self.tie)
        mean, deviation = exact.moments()
        ratio = jnp.where(has("narrow", "wide"), 1 + self.of * (self.size - 1), 1.0)
        ratio = jnp.where(has("correlation"), jnp.asarray([1.0, -1.0]), ratio)
        moved = jnp.where(has("shifted"), self.of * self.size, 0.0) * deviation
        at = mean + (u - moved - mean) / ratio
        at = jnp.where(has("swapped"), u[::-1], at)
        edge = jnp.where(self.simulator == 1, 0.0, mean[0])
        lost = jnp.where(has("dropped") & (u[0] < edge), PENALTY, 0.0)
        return exact.log_density(at, has("tails")) - lost


def posterior(
    simulator: str, fault: str, *, size: float = 1.0, tie: float = 1.0, of: str = "b"
) -> Posterior:
    which = jnp.asarray([of == "a", of == "b"], float)
    where = jnp.asarray(SIMULATORS.index(simulator)), jnp.asarray(FAULTS.index(fault))
    return Posterior(*where, jnp.asarray(size), jnp.asarray(tie), which)


@eqx.filter_jit
def simulated(
    key: Key, simulator: Array, tie: Array, n: int
) -> tuple[Float[Array, "n 2"], Float[Array, "n 2"]]:
    """n parameters of the prior, and observations."""
    keys = jax.random.split(key, 4)
    e, f = jax.random.normal(keys[0], (2, n, 2))
    sign = jax.random.rademacher(keys[1], (n,), e.dtype)
    seen = jnp.stack([e[:, 0] + 0.8 * tie * e[:, 1], e[:, 1]], axis=1)
    gaussian = e, seen + f * jnp.asarray([[0.5, 0.8]])
    a, b = sign * (1.5 + 0.5 * e[:, 0]), e[:, 1]
    seen = jnp.stack([sign * a, b + 0.8 * tie * a], axis=1)
    modes = jnp.stack([a, b], axis=1), seen + f * jnp.asarray([[0.3, 0.6]])
    rates = jax.random.gamma(keys[2], SHAPES[:1], (n, 2))
    waits = jax.random.gamma(keys[3], SHAPES[1:], (n, 2)) / rates
    both = jnp.stack([rates[:, 0], rates[:, 0] ** tie * rates[:, 1]], axis=1)
    each = [gaussian, modes, (both, jnp.log(waits))]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves)[simulator], *each)


def bounds(simulator: str) -> tuple[Array, Array]:
    """Low and high ends of the parameters."""
    low = jnp.zeros(2) if simulator == "rates" else jnp.full(2, -jnp.inf)
    return low, jnp.full(2, jnp.inf)
