"""Define the protocol of whiteners, which compute a centre and a scale of each prediction."""

from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.divergences.vectors import NodeScores
from jaxcal.numerics import psd_root
from jaxcal.read import checks
from jaxcal.read.precisions import eyes
from jaxcal.typing import Nodes, Points, Predictions

FORMS = ("full", "diagonal")


class Whitening(NamedTuple):
    """Centres and scales of n predictions, in the units of the targets that they transform.

    Attributes:
        center: Centres, [n, d].
        scale: Scales M, [n, d, d].
        clamped: Number of predictions whose scale could not be estimated in all directions and was
            replaced by a typical one or bounded, [].
        n_not_converged: Number of predictions whose mode `Landing` did not reach, [].
    """

    center: Points
    scale: Float[Array, "n d d"]
    clamped: Int[Array, ""]
    n_not_converged: Int[Array, ""]

    def points(self, ys: Points) -> Points:
        r"""Return targets in the units of their predictions, :math:`u = M^{-1} (y - c)`, [n, d]."""
        return jnp.linalg.solve(self.scale, (ys - self.center)[..., None])[..., 0]

    def scores(self, scores: Points) -> Points:
        r"""Return scores in the units of their predictions, :math:`M^\top s`, [n, d]."""
        return jnp.einsum("nij,ni->nj", self.scale, scores)

    def along_coordinates(self) -> Float[Array, "n d d"]:
        r"""Return the matrices :math:`D M^{-\top}` that map whitened scores :math:`M^\top s` to
        :math:`D s`, with the deviations D of the predictions. Diagonal M give the identity."""
        deviations = jnp.linalg.norm(self.scale, axis=2, keepdims=True)
        return deviations * jnp.swapaxes(jnp.linalg.inv(self.scale), 1, 2)


@runtime_checkable
class Whitener(Protocol):
    """Protocol of whiteners: centres and scales as functions of predictions and nodes alone.

    ``fit(predictions, at_nodes)`` returns a `Whitening` and never uses targets. ``predictions`` and
    the nodes of ``at_nodes`` are in the units of the returned centres; ``at_nodes`` is None if
    ``needs_nodes`` is False.

    Example:
        >>> import jaxcal
        >>> isinstance(jaxcal.whitening.Regression(), jaxcal.whitening.contract.Whitener)
        True
    """

    @property
    def needs_nodes(self) -> bool: ...

    def fit(self, predictions: Predictions, at_nodes: NodeScores | None, /) -> Whitening: ...


def checked(value: object, name: str) -> Whitener:
    """Return the value if it is a `Whitener`; raise TypeError otherwise."""
    return checks.instance(value, Whitener, name, "jaxcal.whitening.Regression()")


def at_base_points(at_nodes: NodeScores | None, who: str) -> tuple[Nodes, Float[Array, "n m d"]]:
    """Return nodes [m, d] and scores at nodes; ValueError about ``who`` if either is missing."""
    if at_nodes is None or at_nodes.nodes is None:
        raise ValueError(
            f"whiten: {who} needs scores at base points and those points: give Scores.at_nodes and "
            f"Scores.nodes"
        )
    return at_nodes.nodes, at_nodes.values


def in_units_of(
    centers: Points,
    covariances: Float[Array, "n d d"],
    clamped: Int[Array, ""],
    n_not_converged: Int[Array, ""] | int = 0,
) -> Whitening:
    """Return the whitening M = D R^1/2 for deviations D, correlations R; NaN if not finite."""
    finite = jnp.all(jnp.isfinite(covariances), axis=(1, 2))[:, None, None]
    safe = jnp.where(finite, covariances, eyes(covariances))
    deviations = jnp.sqrt(jnp.diagonal(safe, axis1=1, axis2=2))
    correlations = safe / (deviations[:, :, None] * deviations[:, None])
    scale = deviations[:, :, None] * psd_root(correlations)
    scale = jnp.where(finite, scale, jnp.nan)
    return Whitening(centers, scale, clamped, jnp.asarray(n_not_converged, clamped.dtype))


def diagonals(matrices: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
    """Return the matrices with 0 off the diagonal."""
    return jnp.where(eyes(matrices) > 0, matrices, 0)
