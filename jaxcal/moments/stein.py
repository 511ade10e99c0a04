r"""Moments from derivatives of a log density: Stein's identity for functions of finite dimension.

For a vector field f with p f -> 0 at every boundary,
:math:`E_{y \sim p}[s_p f^\top + \nabla f] = 0` entry by entry, with :math:`(\nabla f)_{ql} =
\partial_q f_l`. Points and scores are in the units of each prediction (`jaxcal.moments.evaluate`).
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.moments.evaluation import LogDensityOfOne
from jaxcal.read import convert
from jaxcal.typing import Point

Form = Literal["full", "diagonal", "trace", "correlation"]
FORMS = ("full", "diagonal", "trace", "correlation")


class Score(eqx.Module):
    r"""The score :math:`s_p(y)`, [d], as a moment: detects shifts.

    The Stein moment of f = 1. The density must be continuous and vanish at every boundary.

    Args:
        marginal: False for the score itself, which concerns each coordinate given the others, in
            the units of the prediction. True for each coordinate by itself: :math:`\Sigma_p s_p` in
            claimed standard deviations, with :math:`\Sigma_p = M M^\top` of these units.
        whole_space: Leave the moment out if a density has a boundary; False keeps it.

    Cost: one gradient.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> standard_normal = lambda y: -jnp.sum(y**2) / 2
        >>> jaxcal.moments.Score()(standard_normal, jnp.array([2.0, 1.0]))["shift"].tolist()
        [-2.0, -1.0]
    """

    marginal: bool = eqx.field(default=False, static=True)
    whole_space: bool = eqx.field(default=True, static=True)
    smoothness: int = eqx.field(default=1, init=False, static=True)

    def __call__(self, log_density: LogDensityOfOne, y: Point) -> dict[str, Array]:
        return {"shift": jax.grad(log_density)(y)}


class Curvature(eqx.Module):
    r"""The information-matrix moment :math:`s_p s_p^\top + \nabla^2 \log p`.

    The Stein moment of f = score. Detects wrong spread within each mode (diagonal) and correlation.
    The density must be twice differentiable, unlike networks with kinks (ReLU), and
    :math:`\nabla p` must vanish at a boundary of the support: for a Beta(2, 2) the mean is -12.

    Args:
        form: "full", the d (d + 1) / 2 different entries; "diagonal" or "correlation", those on
            or off the diagonal; or "trace", one number.
        bound: With a bound c, f is :math:`s / \sqrt{1 + |s|^2 / c^2}`, for predictions with heavy
            tails: the moment then grows linearly in the score. None for the score itself.
        whole_space: Leave the moment out if a density has a boundary; False keeps it.

    Cost: d Hessian-vector products.

    Source: White (1982), the information matrix test.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> standard_normal = lambda y: -jnp.sum(y**2) / 2
        >>> values = jaxcal.moments.Curvature(bound=None)(standard_normal, jnp.array([2.0, 1.0]))
        >>> values["spread"].tolist()
        [3.0, 0.0]
    """

    form: Form = eqx.field(default="full", static=True)
    bound: float | None = eqx.field(default=3.0, static=True)
    whole_space: bool = eqx.field(default=True, static=True)
    smoothness: int = eqx.field(default=2, init=False, static=True)

    def __check_init__(self):
        convert.choice(self.form, "form", FORMS)
        if self.bound is not None:
            convert.real(self.bound, "bound", above=0)

    def __call__(self, log_density: LogDensityOfOne, y: Point) -> dict[str, Array]:
        def field(z: Point) -> tuple[Point, Point]:
            score = jax.grad(log_density)(z)
            if self.bound is None:
                return score, score
            return score / jnp.sqrt(1 + jnp.sum((score / self.bound) ** 2)), score

        def along(direction: Point) -> Point:
            return jax.jvp(lambda z: field(z)[0], (y,), (direction,))[1]

        slopes = jax.lax.map(along, jnp.eye(y.size, dtype=y.dtype))
        f, score = field(y)
        return _entries(score[:, None] * f[None] + slopes, self.form)


def _entries(matrix: Float[Array, "d d"], form: Form) -> dict[str, Array]:
    """Return the diagonal and the scaled off-diagonal entries of the symmetric part."""
    variances = jnp.diagonal(matrix)
    if form == "trace":
        return {"spread": jnp.sum(variances, keepdims=True)}
    if form == "diagonal":
        return {"spread": variances}
    i, j = jnp.triu_indices(variances.size, 1)
    others = {"correlation": (matrix[i, j] + matrix[j, i]) / 2**0.5}  # nothing in one dimension
    return others if form == "correlation" else {"spread": variances} | others
