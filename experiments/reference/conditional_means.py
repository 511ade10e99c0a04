"""Quantities of the CKCE paper beside CKCE: operators and their distance, its mean under
calibration, a ridge by cross-validation, and the split of the Brier score."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.ckce import kernels, solvers
from jaxcal.ckce.estimator import checked_problem
from jaxcal.ckce.inputs import residuals
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.kernels import grams
from jaxcal.numerics import at_least
from jaxcal.typing import ArrayLike, KernelLike, Scalar
from reference.classes import cells


def noise(q: Float[Array, "n m"], root: Float[Array, "m m"] | None) -> Float[Array, " n"]:
    r"""Return the mean of :math:`\|r_i\|^2` for classes drawn from the predictions,
    :math:`\sum_y q_{iy} \Lambda_{yy} - q_i^\top \Lambda q_i`, or :math:`1 - \|q_i\|^2`."""
    if root is None:
        return 1 - jnp.sum(q**2, axis=1)
    return q @ jnp.sum(root**2, axis=1) - jnp.sum((q @ root) ** 2, axis=1)


class ConditionalMean(NamedTuple):
    """A fitted operator of P(Y | X): pairs, kernels with their bandwidths, and the Cholesky factor
    of K + n ridge I."""

    xs: Float[Array, "n q"]
    ys: Float[Array, "n d"]
    kernel: KernelLike
    target_kernel: KernelLike
    low: Float[Array, "n n"]

    def __call__(self, xs: Float[Array, "r q"], ys: Float[Array, "c d"]) -> Float[Array, "r c"]:
        r"""The embedding of P(Y | x) evaluated at y: an estimate of :math:`E[\ell(Y, y) | x]`."""
        weights = solvers.solve(self.low, grams.gram(self.kernel, self.xs, xs)).T
        return weights @ grams.gram(self.target_kernel, self.ys, ys)


def conditional_mean(
    xs: Float[Array, "n q"],
    ys: Float[Array, "n d"],
    *,
    kernel: KernelLike,
    target_kernel: KernelLike,
    ridge: float,
) -> ConditionalMean:
    """The operator fitted to pairs. Source: Moskvichev and Sejdinovic, eq. 4."""
    low = solvers.factor(grams.square_gram(kernel, xs), jnp.asarray(ridge))
    return ConditionalMean(xs, ys, kernel, target_kernel, low)


def inner_product(a: ConditionalMean, b: ConditionalMean) -> Scalar:
    """Hilbert-Schmidt inner product :math:`Tr(A^{-1} L_{YZ} A'^{-1} K_{X'X})`, with a's kernels.

    Source: Ren et al. (2016), in Moskvichev and Sejdinovic, Section 2.3.
    """
    left = solvers.solve(a.low, grams.gram(a.target_kernel, a.ys, b.ys))
    right = solvers.solve(b.low, grams.gram(a.kernel, b.xs, a.xs))
    return jnp.sum(left * right.T)


def squared_distance(a: ConditionalMean, b: ConditionalMean) -> Scalar:
    """CMMD^2: the squared Hilbert-Schmidt norm of the difference of two operators.

    Source: Ren et al. (2016), in Moskvichev and Sejdinovic, Section 2.3.
    """
    return inner_product(a, a) + inner_product(b, b) - 2 * inner_product(a, b)


@jax.jit
def null_mean(
    q: Float[Array, "n m"], *, target_kernel: Float[Array, "m m"] | None = None
) -> Scalar:
    r"""The exact mean of CKCE where labels are drawn from the predictions, at the default ridge.

    :math:`\sum_i [A^{-1} K A^{-1}]_{ii} (1 - \|q_i\|^2)`.
    """
    labels = jnp.zeros(len(q), jnp.int32)
    problem = checked_problem(q, labels, simplex_kernel(), target_kernel, None, None)
    kernel, _ = kernels.fill(problem.kernel, problem.q)
    w = solvers.null_weights(grams.square_gram(kernel, problem.q), problem.ridge)
    return jnp.sum(jnp.diagonal(w) * noise(problem.q, problem.root))


def cross_validated_ridge(
    gram: Float[Array, "n n"], responses: Float[Array, "n p"], ridges: Float[Array, " r"]
) -> tuple[Scalar, Float[Array, " r"]]:
    r"""The ridge with the least mean squared error of predicting each row from all others, and all
    errors.

    The error of leaving i out is :math:`(A^{-1} Y)_i / (A^{-1})_{ii}`; the ridge of the n - 1
    others is n lambda / (n - 1). Source: Moskvichev and Sejdinovic, Section 2.3, which mentions it
    after Gruenewaelder et al. (2012).
    """
    values, vectors = jnp.linalg.eigh(gram)
    turned = vectors.T @ responses

    def error(ridge: Scalar) -> Scalar:
        inverse = 1 / (at_least(values, 0) + len(gram) * ridge)
        left = vectors @ (inverse[:, None] * turned)
        diagonal = jnp.sum(vectors**2 * inverse[None], axis=1)
        return jnp.mean(jnp.sum((left / diagonal[:, None]) ** 2, axis=1))

    errors = jax.lax.map(error, ridges)
    return ridges[jnp.argmin(errors)], errors


class BrierSplit(NamedTuple):
    """The Brier score as ``calibration`` + ``refinement`` + ``within``.

    ``refinement`` is ``uncertainty``, what predicting the class frequencies costs, less
    ``resolution``, what the cells know beyond that; ``within``: what predictions that differ inside
    a cell add.
    """

    brier: Scalar
    calibration: Scalar
    refinement: Scalar
    uncertainty: Scalar
    resolution: Scalar
    within: Scalar


def brier_split(predictions: ArrayLike, targets: ArrayLike, *, bins: int = 10) -> BrierSplit:
    r"""The Brier score as calibration plus refinement, over cells of ``bins`` intervals a class.

    :math:`\sum_b \frac{n_b}{n} \|\bar e_b - \bar q_b\|^2` and
    :math:`\sum_b \frac{n_b}{n} (1 - \|\bar e_b\|^2)`. Source: Kull and Flach (2015); the empirical
    form is Murphy's (1973), its last term that of Stephenson et al. (2008).
    """
    by_cell = cells(predictions, targets, bins=bins)
    calibration = by_cell.weights @ jnp.sum((by_cell.observed - by_cell.predicted) ** 2, axis=1)
    refinement = 1 - by_cell.weights @ jnp.sum(by_cell.observed**2, axis=1)
    uncertainty = 1 - jnp.sum((by_cell.weights @ by_cell.observed) ** 2)
    brier = jnp.mean(jnp.sum(residuals(predictions, targets) ** 2, axis=1))
    within = brier - calibration - refinement
    resolution = uncertainty - refinement
    return BrierSplit(brier, calibration, refinement, uncertainty, resolution, within)
