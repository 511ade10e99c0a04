r"""Predictions that are draws: moved by the map of normal distributions with their moments.

Of normal draws with mean :math:`\bar x` and covariance S, one more has a Student t distribution
with m - d degrees of freedom about :math:`\bar x`, of scale :math:`(1 + 1/m) (m - 1)/(m - d) S`.
The likelihood of these makes the map match moments of errors, for many draws of any form, and
leaves few draws from the right distribution as they are. The gain is measured by the energy score
of the draws themselves,

.. math:: E |X - y| - E |X - X'| / 2

(smaller is better), which is proper for all predictions with a mean. Blocks of draws are moved by
the moments of the others, so that a shared mean does not make moved draws look too narrow.

Source: Gneiting and Raftery (2007), Section 4.3.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.read import Draws
from jaxcal.repairing.move import Move
from jaxcal.typing import Vector

BLOCKS = 5  # most parts of the draws, each moved by the moments of the others


def independent(draws: Draws) -> tuple[Draws, Float[Array, ""]]:
    """Return independent draws of n predictions, and the correlation of successive ones.

    Raises:
        ValueError: There are fewer than d + 4 of them, targets are not vectors, or (outside of jit)
            the draws of a prediction have no spread.
    """
    samples = jnp.asarray(draws.samples)
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
    """Return whether the covariance of all draws, or of those outside of a block, is singular up to
    rounding."""
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
    """Return the distribution of one more draw, if those of a prediction are normal."""
    import numpyro.distributions as dist

    mean, root = _moments(draws)
    m, d = draws.samples.shape[1], mean[0].size
    scale = root * ((1 + 1 / m) * (m - 1) / (m - d)) ** 0.5
    kind = dist.StudentT if mean.ndim == 1 else dist.MultivariateStudentT
    return kind(float(m - d), mean, scale)


def _moments(draws: Draws) -> tuple[Array, Array]:
    """Return means and deviations, or roots of covariances."""
    samples = jnp.asarray(draws.samples)
    mean = jnp.mean(samples, axis=1)
    if samples.ndim == 2:
        return mean, jnp.std(samples, axis=1, ddof=1)
    gaps = samples - mean[:, None]
    covariance = jnp.einsum("nmi,nmj->nij", gaps, gaps) / (gaps.shape[1] - 1)
    return mean, jnp.linalg.cholesky(covariance)


def blocks(draws: Draws) -> tuple[Draws, Draws]:
    """Return k blocks of the draws of each prediction, [k, n, ..], and the draws outside of each.

    A block has at least two draws, and there are at least d + 2 others.
    """
    samples = jnp.asarray(draws.samples)
    m, d = samples.shape[1], samples[0, 0].size
    size = min(max(m // BLOCKS, 2), m - d - 2)
    each = [np.arange(size) + size * k for k in range(min(BLOCKS, m // size))]
    others = [jnp.delete(samples, at, axis=1) for at in each]
    return Draws(jnp.stack([samples[:, at] for at in each])), Draws(jnp.stack(others))


def moved_draws(draws: Draws, move: Move) -> Draws:
    """Return the draws of n predictions, moved row by row."""
    samples = jnp.asarray(draws.samples)
    rows = samples.reshape(*samples.shape[:2], -1)
    return Draws(jax.vmap(move.of, in_axes=1, out_axes=1)(rows).reshape(samples.shape), draws.rhat)


def energy_scores(draws: Draws, targets: Array) -> Vector:
    """Return the energy score of each prediction, [n]; smaller is better. Cost: n m^2."""
    samples = jnp.asarray(draws.samples)
    n, m = samples.shape[:2]

    def one(row: tuple[Float[Array, "m d"], Float[Array, " d"]]) -> Array:
        xs, y = row
        lengths = lambda gaps: jnp.linalg.norm(gaps, axis=1)  # noqa: E731
        between = jax.lax.map(lambda x: jnp.sum(lengths(xs - x[None])), xs)
        return jnp.mean(lengths(xs - y[None])) - jnp.sum(between) / (2 * m * (m - 1))

    rows = samples.reshape(n, m, -1), targets.reshape(n, -1)
    return jax.lax.map(one, rows, batch_size=min(n, 256))
