"""Is a target exchangeable with independent points? Its mean beside theirs, from log densities."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal import convert
from jaxcal.moments.evaluation import LogDensityOfOne
from jaxcal.typing import Key, Point


class Exchangeable(eqx.Module):
    r"""A target less its mean given a set it may be any member of. Sees where the mass is.

    Let :math:`a_0 = y` be the target and :math:`a_1, .., a_m` draws of a density :math:`\nu`, here
    normal. If y is a draw of p, the probability that :math:`a_k` is the target, given the set, is
    :math:`w_k \propto p(a_k) / \nu(a_k)`, so that

    .. math:: E\Big[ y - \sum_{k=0}^m w_k a_k \Big] = 0

    exactly, for every m and every :math:`\nu` that reaches wherever p does. The mean tells of wrong
    weights of modes and of shifts, and nears the exact residual :math:`y - E_p y` the more of the
    points lie where p has its mass; with none there, or where all members of the set are equally
    likely, it is 0. Needs no gradient, no constant and no
    transform of a bounded support.

    Where the density is 0 at a member of the set, members are taken in the units of the set:
    :math:`r_k = (a_k - \sum_l w_l a_l) / s` with :math:`s^2` the variance of the weights. The same
    is said of :math:`r / \sqrt{1 + r^2}` in the place of a, and of :math:`r^2 / (1 + r^2)`, which
    sees the spread of densities that end, such as a uniform one, of which `Balance` sees nothing.
    Both are bounded, as a large target that is rare would make the test reject too often. Elsewhere
    the last d of the 2 d values are 0.

    Points are drawn anew for each target, about the middle of all targets, ``scale`` times as far
    as these: in units in common, also where each prediction has its own.

    Args:
        n_candidates: Points m beside each target.
        scale: Deviation of the normal density, in those of all targets.

    Cost: m + 1 log densities a target.

    Source: Tjelmeland (2004) for the weights; Besag and Clifford (1989) for exchangeability.

    Example:
        >>> import jax, jaxcal
        >>> y = jax.random.normal(jax.random.key(0), (200, 1))
        >>> y = y.at[:140].add(3.0).at[140:].add(-3.0)  # the upper mode has 7 of 10 targets
        >>> modes = lambda p, y: jax.numpy.logaddexp(-((y[0] - 3) ** 2) / 2, -((y[0] + 3) ** 2) / 2)
        >>> model = jaxcal.Unnormalized(modes, None, in_axes=None)
        >>> result = jaxcal.moment_test(0, model, y, moment=jaxcal.moments.Exchangeable())
        >>> float(result.p_value) < 0.01
        True
    """

    n_candidates: int = eqx.field(default=32, static=True)
    scale: float = eqx.field(default=1.2, static=True)
    common: bool = eqx.field(default=True, init=False, static=True)
    randomized: bool = eqx.field(default=True, init=False, static=True)
    whole_space: bool = eqx.field(default=False, init=False, static=True)
    smoothness: int = eqx.field(default=0, init=False, static=True)

    def __check_init__(self):
        convert.integer(self.n_candidates, "n_candidates")
        convert.real(self.scale, "scale", above=0)

    def __call__(self, log_density: LogDensityOfOne, y: Point, key: Key) -> dict[str, Array]:
        drawn = self.scale * jax.random.normal(key, (self.n_candidates, y.size), y.dtype)
        members = jnp.concatenate([y[None], drawn])
        proposal = -jnp.sum((members / self.scale) ** 2, axis=1) / 2
        logs = jax.lax.map(log_density, members)
        flat = jnp.max(logs) == jnp.min(logs)  # whichever is the target; so no mean of it moves
        weights = jax.nn.softmax(logs - proposal)
        gaps = members - (weights @ members)[None]
        variance = weights @ gaps**2
        r = gaps / jnp.where(variance > 0, variance, 1)[None] ** 0.5
        squares = r**2 / (1 + r**2)
        ends = jnp.any(logs == -jnp.inf)
        first = jnp.where(ends, r / jnp.sqrt(1 + r**2), gaps)
        both = jnp.concatenate([first, jnp.where(ends, squares, 0)], axis=1)
        return {"weights": jnp.where(flat, 0, both[0] - weights @ both)}
