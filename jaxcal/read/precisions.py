r"""Compute precisions and covariances of predictions from scores, and scales from precisions.

If predictions differ in width, sharp ones have large scores and dominate the statistic. Scores at
the nodes determine the width: :math:`s_p(z) \approx -\Lambda_p (z - \mu_p)`, so the slope of a
regression of scores on points estimates the precision, and :math:`M_p = \Lambda_p^{-1/2}`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcal.numerics import at_least, at_most, eliminated, psd_root
from jaxcal.typing import Nodes, Precondition

# A scale that is too large gives scores that dominate the statistic; one too small does no harm.
WIDTHS = 1e4  # largest ratio of a deviation to the typical one
LEAST = 1e-5  # least eigenvalue of precisions with diagonal 1
RANGE = 1e4  # largest ratio, up or down, of an eigenvalue to the typical precision


@partial(jax.jit, static_argnames="form")
def precision_root(
    nodes: Nodes, scores: Float[Array, "n m d"], form: Precondition
) -> tuple[Array, Int[Array, ""]]:
    r"""Return :math:`M_p = \Lambda_p^{-1/2}` from scores at m nodes, and how many M_p are clamped.

    ``form``: "isotropic" (M is [n]), "diagonal" (M is [n, d]) or "full" (M is [n, d, d]; m > d).
    Precisions :math:`\Lambda_p` (if "full", eigenvalues) that are not positive become the median of
    the positive ones. All others are clamped to 1e-4 to 1e4 times this median. The Stein identity
    holds for any M that does not depend on targets, but M that is far too large invalidates the
    level. M has the unit of y. O(n m d^2 + n d^3).
    """
    z, s = _centred(nodes, scores, form, "precondition")
    d = nodes.shape[1]
    if form == "full":
        slope = _regression(z, s)
        # a matrix that is not finite has no eigenvectors: NaN is the result
        finite = jnp.all(jnp.isfinite(slope), axis=(1, 2))[:, None, None]
        eye = jnp.eye(d, dtype=slope.dtype)[None]
        bounded, clamped = bounded_spectrum(
            jnp.where(finite, slope, eye),
            lambda values: _clamp(jnp.where(finite[:, 0], values, jnp.nan))[0],
        )
        root = jnp.linalg.inv(psd_root(jnp.where(finite, bounded, eye)))
        return jnp.where(finite, root, jnp.nan), jnp.sum(clamped & finite[:, 0, 0])
    products, squares = -jnp.einsum("md,nmd->nd", z, s), jnp.sum(z**2, axis=0)
    if form == "isotropic":
        values, clamped = _clamp(jnp.sum(products, 1, keepdims=True) / jnp.sum(squares))
        return values[:, 0] ** -0.5, clamped
    values, clamped = _clamp(products / squares[None])
    return values**-0.5, clamped


def slopes(nodes: Nodes, scores: Float[Array, "n m d"], form: str) -> Float[Array, "n d d"]:
    r"""Return the precisions :math:`\Lambda_p` of :math:`s_p(z) \approx -\Lambda_p (z - c)`.

    Symmetrized least squares of the scores [n, m, d] at m nodes [m, d]; "diagonal" treats each
    coordinate separately. The precisions may be indefinite. Cost O(n m d^2).
    """
    z, s = _centred(nodes, scores, form, "form")
    if form == "full":
        return _regression(z, s)
    alone = -jnp.einsum("md,nmd->nd", z, s) / jnp.sum(z**2, axis=0)[None]
    return alone[:, :, None] * jnp.eye(nodes.shape[1], dtype=nodes.dtype)[None]


def _centred(
    nodes: Nodes, scores: Float[Array, "n m d"], form: str | None, name: str
) -> tuple[Nodes, Float[Array, "n m d"]]:
    """Return nodes and scores minus their means; ValueError for too few nodes for the form."""
    m, d = nodes.shape
    needed = d + 1 if form == "full" else 2
    if m < needed:
        raise ValueError(
            f"{name}={form!r} regresses scores on base points and needs at least {needed} "
            f"of them in {d} dimensions, got {m}: raise n_nodes"
        )
    z = nodes - jnp.mean(nodes, axis=0, keepdims=True)
    return z, scores - jnp.mean(scores, axis=1, keepdims=True)


def _regression(z: Nodes, s: Float[Array, "n m d"]) -> Float[Array, "n d d"]:
    """Return minus the symmetric part of the slope when scores s are regressed on nodes z."""
    m, d = z.shape
    slope = -jnp.linalg.lstsq(z, jnp.moveaxis(s, 1, 0).reshape(m, -1))[0]
    slope = jnp.moveaxis(slope.reshape(d, -1, d), 1, 0)
    return (slope + jnp.swapaxes(slope, 1, 2)) / 2


def _clamp(precisions: Float[Array, "n k"]) -> tuple[Float[Array, "n k"], Int[Array, ""]]:
    finite = jnp.isfinite(precisions)
    typical = jnp.nanmedian(jnp.where(finite & (precisions > 0), precisions, jnp.nan))
    typical = jnp.where(jnp.isnan(typical), 1.0, typical).astype(precisions.dtype)
    # a slope of the wrong sign carries no information on the width: use the typical one
    likely = jnp.where(precisions > 0, precisions, typical)
    likely = jnp.where(finite, likely, precisions)
    kept = at_most(at_least(likely, typical / RANGE), typical * RANGE)
    outside = finite & (kept != precisions)
    return kept, jnp.sum(jnp.any(outside, axis=1))


def bounded_spectrum(
    matrices: Float[Array, "n d d"], bound: Callable[[Float[Array, "n d"]], Float[Array, "n d"]]
) -> tuple[Float[Array, "n d d"], Bool[Array, " n"]]:
    """Return symmetric matrices with ``bound`` applied to eigenvalues, and which ones changed.

    Derivatives exist even where eigenvalues coincide, because eigenvectors count as constants. In
    their basis, the diagonal of a derivative of the matrix is the derivative of the eigenvalues v;
    any other entry (i, j) is multiplied by (bound(v_i) - bound(v_j)) / (v_i - v_j).
    """
    fixed = jax.lax.stop_gradient(matrices)
    values, vectors = jnp.linalg.eigh(fixed)
    across = jnp.swapaxes(vectors, 1, 2)
    change = across @ (matrices - fixed) @ vectors
    values = values + jnp.diagonal(change, axis1=1, axis2=2)
    kept = bound(values)
    gaps = values[:, :, None] - values[:, None]
    inside = (kept == values)[:, :, None] & (kept == values)[:, None]
    quotient = (kept[:, :, None] - kept[:, None]) / jnp.where(gaps == 0, 1, gaps)
    quotient = jnp.where(inside, 1, jnp.where(gaps == 0, 0, quotient))
    eye = jnp.eye(matrices.shape[1], dtype=matrices.dtype)[None]
    inner = kept[:, :, None] * eye + jax.lax.stop_gradient(quotient) * change * (1 - eye)
    return vectors @ inner @ across, jnp.any(kept != values, axis=1)


def inverses(
    precisions: Float[Array, "n d d"],
) -> tuple[Float[Array, "n d d"], Float[Array, "n d d"], Int[Array, ""]]:
    """Return positive definite precisions by `bounded_matrices`, their inverses, and how many
    changed. Both are NaN for matrices that are not finite."""
    bounded, clamped = bounded_matrices(precisions, precisions=True)
    finite = jnp.all(jnp.isfinite(bounded), axis=(1, 2))[:, None, None]
    units = jnp.diagonal(jnp.where(finite, bounded, eyes(bounded)), axis1=1, axis2=2) ** -0.5
    square = units[:, :, None] * units[:, None]
    inverse = eliminated(jnp.where(finite, bounded * square, eyes(bounded)), eyes(bounded))
    inverse = inverse.solutions
    inverse = jnp.where(finite, (inverse + jnp.swapaxes(inverse, 1, 2)) / 2 * square, jnp.nan)
    return bounded, inverse, clamped


def bounded_matrices(
    matrices: Float[Array, "n d d"], *, precisions: bool
) -> tuple[Float[Array, "n d d"], Int[Array, ""]]:
    """Return positive definite covariances or precisions, and how many matrices were changed.

    A diagonal entry that is not positive becomes the median of its coordinate over predictions. A
    deviation is at most `WIDTHS` times the median deviation. If a diagonal entry changes, all other
    entries in its row and column become 0. The next step uses matrices scaled to diagonal 1, and
    undoes the scaling. Eigenvalues that are not positive become 1; positive eigenvalues of
    precisions are raised to at least `LEAST`. Matrices that are not finite become NaN, uncounted.
    """
    finite = jnp.all(jnp.isfinite(matrices), axis=(1, 2))
    diagonal = jnp.diagonal(matrices, axis1=1, axis2=2)
    positive = diagonal > 0
    typical = jnp.nanmedian(jnp.where(finite[:, None] & positive, diagonal, jnp.nan), axis=0)
    typical = jnp.where(jnp.isnan(typical), 1, typical)[None]
    likely = jnp.where(positive, diagonal, typical)
    if precisions:
        likely, least = at_least(likely, typical / WIDTHS**2), LEAST
    else:
        likely, least = at_most(likely, typical * WIDTHS**2), 0.0
    kept = likely == diagonal
    roots = jnp.sqrt(jnp.where(finite[:, None], likely, 1))
    square = roots[:, :, None] * roots[:, None]
    identities = eyes(matrices)
    unitless = jnp.where(finite[:, None, None], matrices, identities) / square
    unitless = jnp.where(kept[:, :, None] & kept[:, None], unitless, identities)

    def positive_values(values: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return jnp.where(values > 0, at_least(values, least), 1)

    bounded, moved = bounded_spectrum(unitless, positive_values)
    changed = finite & (moved | ~jnp.all(kept, axis=1))
    return jnp.where(finite[:, None, None], bounded * square, jnp.nan), jnp.sum(changed)


def eyes(matrices: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
    """Return identity matrices in the shape of ``matrices``."""
    return jnp.broadcast_to(jnp.eye(matrices.shape[-1], dtype=matrices.dtype), matrices.shape)
