"""The Stein kernel of an operator-valued kernel, by autodiff: what `precondition` is a case of."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernels import points
from jaxcal.statistics.weighted import WeightedFeatures
from jaxcal.typing import Point, Scalar


def operator_stein(
    operator: Callable[[Point, Point], Float[Array, "d d"]],
    x: Point,
    y: Point,
    score_x: Point,
    score_y: Point,
) -> Scalar:
    r"""The Stein kernel of an operator-valued kernel, by autodiff, for one pair of observations.

    ``operator(x, y)[i, j]`` is :math:`A_{ij} = (K_{ij}(p, p') l(x, \cdot))(y)`, and
    :math:`h = s_y^\top A s_x + s_y^\top (A \nabla_x) + (\nabla_y^\top A) s_x
    + \nabla_y^\top A \nabla_x`, with :math:`(A\nabla_x)_i = \sum_j \partial_{x_j} A_{ij}` and
    :math:`(\nabla_y^\top A)_j = \sum_i \partial_{y_i} A_{ij}`. Cost O(d^4).
    Source: Glaser et al. (2023), eq. A.1.
    """
    a = operator(x, y)
    a_x = jax.jacfwd(operator, argnums=0)(x, y)
    a_y = jax.jacfwd(operator, argnums=1)(x, y)
    a_yx = jax.jacfwd(jax.jacfwd(operator, argnums=1), argnums=0)(x, y)
    mixed = score_y @ jnp.einsum("ijj->i", a_x) + jnp.einsum("iji->j", a_y) @ score_x
    return score_y @ a @ score_x + mixed + jnp.einsum("ijij->", a_yx)


class OperatorStein(eqx.Module):
    """Pairwise statistic of an operator-valued kernel, by autodiff: the general form.

    ``operator(p, q, x, y)`` returns A [d, d] for the prediction features p, q (one observation
    each) and targets x, y. Features: `jaxcal.statistics.weighted.WeightedFeatures` of
    `SteinFeatures`. Cost O(d^4) per pair: for small d, and for checking special forms.
    """

    operator: Callable[..., Array]

    @property
    def channels(self) -> int:
        return 1

    def block(self, rows: WeightedFeatures, cols: WeightedFeatures) -> Float[Array, "c r s"]:
        def pair(a: WeightedFeatures, b: WeightedFeatures) -> Array:
            bound = lambda x, y: self.operator(a.predictions, b.predictions, x, y)  # noqa: E731
            one, other = a.residual, b.residual
            return operator_stein(bound, one.ys, other.ys, one.scores, other.scores)

        return points.gram(pair, rows, cols)[None]

    def diagonal(self, features: WeightedFeatures) -> Float[Array, "c n"]:
        def alone(one: WeightedFeatures) -> Array:
            single = jax.tree.map(lambda leaf: leaf[None], one)
            return self.block(single, single)[0, 0, 0]

        return jax.vmap(alone)(features)[None]
