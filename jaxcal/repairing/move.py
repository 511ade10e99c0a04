r"""Move predictions by an affine map in their own units; return the moved densities or draws.

A prediction p with centre c and scale M becomes, by a shift a and a stretch B, the distribution of

.. math:: Y = c + M (a + B M^{-1} (Y_0 - c)), \quad Y_0 \sim p.

Its density is :math:`\log p'(y) = \log p(y_0) - \log |\det B|`. The unknown constant of p is also
that of p', so maps can be fitted by maximum likelihood.

For draws, c and M are their mean and the root of their covariance. The likelihood is that of one
more draw: after m normal draws with mean :math:`\bar x` and covariance S, it has a Student t
distribution with m - d degrees of freedom about :math:`\bar x`, of squared scale
:math:`(1 + 1/m) (m - 1)/(m - d) S`. For large m the fitted map corrects mean and covariance of the
errors. For small m it leaves correct predictions unchanged. The gain is in energy score,

.. math:: E |X - y| - E |X - X'| / 2

for independent draws X, X' and target y (smaller is better), proper if a mean exists. Each block of
draws is moved by c and M of the other draws. With its own c and M, it would look too narrow.

Source: Gneiting and Raftery (2007), Section 4.3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.numerics import full_precision
from jaxcal.read import Draws, Unnormalized, convert
from jaxcal.typing import Key, LogDensity, Points, Scalar, Vector


class Move(NamedTuple):
    """Maps :math:`y = c + F (y_0 - c) + t`, one per prediction, in the units of the data.

    ``center`` c [n, d]; ``forward`` F and ``inverse`` F^-1 [n, d, d]; ``shift`` t [n, d];
    ``log_size`` [n], the logarithm of the determinant of F.
    """

    center: Points
    forward: Float[Array, "*n d d"]
    inverse: Float[Array, "*n d d"]
    shift: Points
    log_size: Float[Array, "*n"]

    @full_precision
    def of(self, y0: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Return the moved points y of points y_0, one per move; [d] for a single move."""
        gaps = y0 - self.center
        return self.center + jnp.einsum("...ij,...j->...i", self.forward, gaps) + self.shift

    @full_precision
    def back(self, y: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """Return the points y_0 that `of` moves to ``y``."""
        gaps = y - self.center - self.shift
        return self.center + jnp.einsum("...ij,...j->...i", self.inverse, gaps)


@dataclass(frozen=True)
class MovedDensity:
    """Log density of a moved prediction; equal to others with the same ``log_density``."""

    log_density: LogDensity

    def __call__(self, params: tuple[Any, Move], y: Array) -> Scalar:
        inner, move = params
        return self.log_density(inner, move.back(y.reshape(-1)).reshape(y.shape)) - move.log_size


class MovedDistribution(eqx.Module):
    """A moved distribution of batch shape [n], with the numpyro methods that tests use."""

    distribution: Any
    move: Move

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return (len(self.move.log_size),)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.distribution.event_shape)

    @property
    def support(self) -> Any:
        return self.distribution.support

    def log_prob(self, ys: Float[Array, "*batch"]) -> Float[Array, "*m n"]:
        logs = self.distribution.log_prob(self._each(self.move.back, ys))
        return logs - jnp.expand_dims(self.move.log_size, range(logs.ndim - 1))

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "*batch"]:
        n = () if self.distribution.batch_shape else self.batch_shape
        drawn = self.distribution.sample(key, (*shape, *n))  # of the widest float type
        return self._each(self.move.of, drawn.astype(self.move.shift.dtype))

    def cdf(self, ys: Float[Array, "*batch"]) -> Float[Array, "*m n"]:
        self._of_numbers("cdf")
        return self.distribution.cdf(self._each(self.move.back, ys))

    def icdf(self, levels: Float[Array, "*batch"]) -> Float[Array, "*m n"]:
        self._of_numbers("icdf")
        at = self.distribution.icdf(levels)
        return self._each(
            self.move.of, jnp.broadcast_to(at, jnp.broadcast_shapes(at.shape, self.batch_shape))
        )

    def _of_numbers(self, method: str) -> None:
        if self.event_shape:
            raise NotImplementedError(f"{method}: of distributions of numbers only")

    def _each(self, function: Callable[[Array], Array], ys: Array) -> Array:
        """Apply a function of points [n, d] to points [.., n, *event]."""
        n, event = len(self.move.log_size), len(self.event_shape)
        if ys.ndim == event:  # one point for all
            ys = jnp.broadcast_to(ys[None], (n, *ys.shape))
        rows = ys.reshape(
            -1, *ys.shape[ys.ndim - event - 1 : ys.ndim - event], self.move.shift.shape[1]
        )
        return jax.vmap(function)(rows).reshape(ys.shape)


def move_all(predictions: Any, move: Move) -> Any:
    """Return n predictions after their moves: an `Unnormalized` or a `MovedDistribution`."""
    if isinstance(predictions, Unnormalized):
        params, axes = (predictions.params, move), (predictions.in_axes, 0)
        return Unnormalized(MovedDensity(predictions.log_density), params, in_axes=axes)
    return MovedDistribution(predictions, move)


@jax.jit
def no_move(like: Move) -> Move:
    """Return identity moves with the shapes of ``like``, to test predictions before a repair."""
    eyes = jnp.zeros_like(like.forward) + jnp.eye(like.shift.shape[1], dtype=like.shift.dtype)[None]
    nothing = jnp.zeros_like(like.shift)
    return Move(like.center, eyes, eyes, nothing, jnp.zeros_like(like.log_size))


BLOCKS = 5  # largest number of blocks of draws, each moved by moments of the other draws


def independent(draws: Draws) -> tuple[Draws, Float[Array, ""]]:
    """Return the draws, thinned if they are dependent, and the correlation [] of successive draws.

    Raises:
        ValueError: Fewer than d + 4 draws remain, draws are neither numbers nor vectors, or
            (outside of jit) the draws of a prediction have no spread in some direction.
    """
    samples = convert.floats(draws.samples, "Draws.samples")
    least = samples[0, 0].size + 4 if samples.ndim in (2, 3) else 0
    if not least or samples.shape[1] < least:
        raise ValueError(
            f"predictions: a repair needs draws of shape [n, m] or [n, m, d] with m >= d + 4, got "
            f"{samples.shape}"
        )
    chosen, lag = Draws(samples, draws.rhat).unsorted().thinned()
    if (m := chosen.samples.shape[1]) < least:
        raise ValueError(
            f"predictions: successive draws have correlation {float(lag):.2g}, as those of a chain "
            f"have, so that {m} of {samples.shape[1]} count as independent, and a repair needs "
            f"d + 4 = {least}: make more steps"
        )
    if not isinstance(chosen.samples, Tracer) and (flat := _without_spread(chosen)).any():
        raise ValueError(
            f"predictions: the draws of {flat.sum()} of {flat.size} predictions (row "
            f"{np.argmax(flat)} is the first), or four fifths of them, have no spread in some "
            f"direction: a repair moves draws in units of their spread, so leave these rows out"
        )
    return chosen, lag


def _without_spread(draws: Draws) -> np.ndarray:
    """Return for each prediction whether a covariance is singular up to rounding, either of all
    draws or of the draws outside of some block, [n]."""
    least = 10 * float(jnp.finfo(draws.samples.dtype).eps)
    flat = np.zeros(len(draws.samples), bool)
    for part in (draws, *map(Draws, blocks(draws)[1].samples)):
        rows = np.asarray(part.samples).reshape(*part.samples.shape[:2], -1)
        sizes, deviations = np.abs(rows).max(1), rows.std(1)
        roots = np.asarray(_moments(part)[1]).reshape(len(rows), *2 * rows.shape[2:])
        widths = np.diagonal(roots, 0, 1, 2)
        wide = (deviations > least * sizes) & (widths > least**0.5 * deviations)
        flat |= ~wide.all(1)
    return flat


def gaussians(draws: Draws) -> Any:
    """Return normal distributions with the moments of draws [n, m] or [n, m, d]."""
    import numpyro.distributions as dist

    mean, root = _moments(draws)
    if mean.ndim == 1:
        return dist.Normal(mean, root)
    return dist.MultivariateNormal(mean, scale_tril=root)


def one_more(draws: Draws) -> Any:
    """Return the Student t distribution of one more draw after m normal draws (see the module)."""
    import numpyro.distributions as dist

    mean, root = _moments(draws)
    m, d = draws.samples.shape[1], mean[0].size
    scale = root * ((1 + 1 / m) * (m - 1) / (m - d)) ** 0.5
    kind = dist.StudentT if mean.ndim == 1 else dist.MultivariateStudentT
    return kind(float(m - d), mean, scale)


def _moments(draws: Draws) -> tuple[Array, Array]:
    """Return means and deviations [n], or means [n, d] and roots of covariances [n, d, d]."""
    samples = jnp.asarray(draws.samples)
    mean = jnp.mean(samples, axis=1)
    if samples.ndim == 2:
        return mean, jnp.std(samples, axis=1, ddof=1)
    gaps = samples - mean[:, None]
    covariance = jnp.einsum("nmi,nmj->nij", gaps, gaps) / (gaps.shape[1] - 1)
    return mean, jnp.linalg.cholesky(covariance)


def blocks(draws: Draws) -> tuple[Draws, Draws]:
    """Return k disjoint blocks of draws of each prediction, [k, n, size, ..], and for each block
    the other draws, [k, n, m - size, ..]; size >= 2, m - size >= d + 2."""
    samples = jnp.asarray(draws.samples)
    m, d = samples.shape[1], samples[0, 0].size
    size = min(max(m // BLOCKS, 2), m - d - 2)
    each = [np.arange(size) + size * k for k in range(min(BLOCKS, m // size))]
    others = [jnp.delete(samples, at, axis=1) for at in each]
    return Draws(jnp.stack([samples[:, at] for at in each])), Draws(jnp.stack(others))


def moved_draws(draws: Draws, move: Move) -> Draws:
    """Return the draws [n, m, ..] of n predictions, each moved by the map of its prediction."""
    samples = jnp.asarray(draws.samples)
    rows = samples.reshape(*samples.shape[:2], -1)
    return Draws(jax.vmap(move.of, in_axes=1, out_axes=1)(rows).reshape(samples.shape), draws.rhat)


def energy_scores(draws: Draws, targets: Array) -> Vector:
    """Return the energy score of each prediction, [n]; smaller is better. Cost: n m^2 d."""
    samples = jnp.asarray(draws.samples)
    n, m = samples.shape[:2]

    def one(row: tuple[Float[Array, "m d"], Float[Array, " d"]]) -> Array:
        xs, y = row
        lengths = lambda gaps: jnp.linalg.norm(gaps, axis=1)  # noqa: E731
        between = jax.lax.map(lambda x: jnp.sum(lengths(xs - x[None])), xs)
        return jnp.mean(lengths(xs - y[None])) - jnp.sum(between) / (2 * m * (m - 1))

    rows = samples.reshape(n, m, -1), targets.reshape(n, -1)
    return jax.lax.map(one, rows, batch_size=min(n, 256))
