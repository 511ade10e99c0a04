r"""Matrices M_p that put every prediction on the scale of its own spread.

Where predictions differ in width, sharp ones have large scores and dominate the statistic. Scores
at the base draws alone tell the width: :math:`s_p(z) \approx -\Lambda_p (z - \mu_p)`, so the
slope of a regression of scores on points estimates the precision, and
:math:`M_p = \Lambda_p^{-1/2}`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcal.numerics import at_least, at_most, psd_root
from jaxcal.typing import Nodes, Precondition

RANGE = 1e4  # eigenvalues further than this factor from the typical precision are clamped


class Preconditioner(NamedTuple):
    """``values`` [n], [n, d] or [n, d, d]; ``clamped`` []: how many predictions were clamped."""

    values: Array
    clamped: Int[Array, ""]


@partial(jax.jit, static_argnames="form")
def precision_root(
    nodes: Nodes, scores: Float[Array, "n m d"], form: Precondition
) -> Preconditioner:
    r""":math:`M_p = \Lambda_p^{-1/2}` from the scores [n, m, d] at m base points [m, d].

    ``form``: "isotropic" (one number a prediction), "diagonal" or "full" (symmetric; needs m > d).
    Slopes that are not positive (densities that widen, or too few points) become the median over
    predictions, those further than a factor of 1e4 from it are clamped there; both are counted. M
    never sees a target, so the Stein identity, and with it the level of the test, is untouched by
    how well the regression fits. Units: M is a length. Cost O(n m d^2 + n d^3).
    """
    m, d = nodes.shape
    needed = d + 1 if form == "full" else 2
    if m < needed:
        raise ValueError(
            f"precondition={form!r} regresses scores on base points and needs at least {needed} "
            f"of them in {d} dimensions, got {m}: raise n_nodes"
        )
    z = nodes - jnp.mean(nodes, axis=0, keepdims=True)
    s = scores - jnp.mean(scores, axis=1, keepdims=True)
    if form == "full":
        slope = -jnp.linalg.lstsq(z, jnp.moveaxis(s, 1, 0).reshape(m, -1))[0]
        slope = jnp.moveaxis(slope.reshape(d, -1, d), 1, 0)
        slope = (slope + jnp.swapaxes(slope, 1, 2)) / 2
        # an eigenvector basis of a matrix that is not finite does not exist: let NaN through
        finite = jnp.all(jnp.isfinite(slope), axis=(1, 2))[:, None, None]
        eye = jnp.eye(d, dtype=slope.dtype)[None]
        bounded, clamped = _clamp_spectrum(jnp.where(finite, slope, eye), finite[:, 0])
        root = jnp.linalg.inv(psd_root(jnp.where(finite, bounded, eye)))
        return Preconditioner(jnp.where(finite, root, jnp.nan), clamped)
    products, squares = -jnp.einsum("md,nmd->nd", z, s), jnp.sum(z**2, axis=0)
    if form == "isotropic":
        values, clamped = _clamp(jnp.sum(products, 1, keepdims=True) / jnp.sum(squares))
        return Preconditioner(values[:, 0] ** -0.5, clamped)
    values, clamped = _clamp(products / squares[None])
    return Preconditioner(values**-0.5, clamped)


def _clamp(precisions: Float[Array, "n k"]) -> tuple[Float[Array, "n k"], Int[Array, ""]]:
    finite = jnp.isfinite(precisions)
    typical = jnp.nanmedian(jnp.where(finite & (precisions > 0), precisions, jnp.nan))
    typical = jnp.where(jnp.isnan(typical), 1.0, typical).astype(precisions.dtype)
    # a slope of the wrong sign says nothing about the width: the typical one is the best guess
    likely = jnp.where(precisions > 0, precisions, typical)
    likely = jnp.where(finite, likely, precisions)
    kept = at_most(at_least(likely, typical / RANGE), typical * RANGE)
    outside = finite & (kept != precisions)
    return kept, jnp.sum(jnp.any(outside, axis=1))


def _clamp_spectrum(
    matrices: Float[Array, "n d d"], finite: Bool[Array, "n 1"]
) -> tuple[Float[Array, "n d d"], Int[Array, ""]]:
    """Symmetric matrices with clamped eigenvalues, and how many were clamped.

    Eigenvectors have no derivative where eigenvalues coincide, but the matrix has: to first order
    its eigenvalues move by the diagonal of the change in their basis, and what is off the diagonal
    keeps the quotient of the differences. Exact in every order where nothing is clamped.
    """
    held = jax.lax.stop_gradient(matrices)
    values, vectors = jnp.linalg.eigh(held)
    across = jnp.swapaxes(vectors, 1, 2)
    change = across @ (matrices - held) @ vectors
    values = values + jnp.diagonal(change, axis1=1, axis2=2)
    kept, clamped = _clamp(jnp.where(finite, values, jnp.nan))
    gaps = values[:, :, None] - values[:, None]
    inside = (kept == values)[:, :, None] & (kept == values)[:, None]
    quotient = (kept[:, :, None] - kept[:, None]) / jnp.where(gaps == 0, 1, gaps)
    quotient = jnp.where(inside, 1, jnp.where(gaps == 0, 0, quotient))
    eye = jnp.eye(matrices.shape[1], dtype=matrices.dtype)[None]
    inner = kept[:, :, None] * eye + jax.lax.stop_gradient(quotient) * change * (1 - eye)
    return vectors @ inner @ across, clamped
