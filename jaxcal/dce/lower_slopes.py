r"""The lower distance as a number with slopes, under jit, vmap and grad, by calls back to SciPy.

The distance is the least cost :math:`\sum |u - v| \Pi` of a coupling whose u are calibrated, and
twice over an envelope: of the dual functions a, b for masses, of the coupling for predictions.

.. math:: \partial d / \partial p^0_j = a(v_j), \quad \partial d / \partial p^1_j = b(v_j),

.. math:: \partial d / \partial v_j = \sum_{u \ne v_j} \mathrm{sign}(v_j - u)\,\Pi(u, v_j)
          + \Big[\sum_{v \ne v_j} \mathrm{sign}(v_j - v)\,\Pi(v_j, v)
          - (b - a)(v_j)\,\Pi(u = v_j)\Big]

The bracket counts where some mass of v_j stays, u = v_j. That place then moves with v_j: what comes
from elsewhere travels further, and the place's labels, balanced at u, are out of balance by
:math:`\Pi(u = v_j)` a unit, which costs the multiplier s = b - a. (Moving a and b alone is wrong:
they have kinks at every v_j.) Where the coupling or a, b are not unique the distance may have a
kink, and one of its slopes comes out.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxcal import checks
from jaxcal.dce.lower import LowerDistance, lower_of_masses, places_of
from jaxcal.dce.predictions import binary
from jaxcal.typing import ArrayLike, Scalar, Vector


def lower_distance_value(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    tol: float = 1e-6,
) -> Scalar:
    """The middle of the certificate of `lower_distance`, as a differentiable number.

    Works under jit, vmap and grad, in all three arguments; where predictions tie, the slope is
    that of moving them together, shared by mass. Beyond 1,500 different predictions value and
    slope are those of the predictions rounded to a grid of 1,000 cells.

    Args:
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of such, [n].
        weights: Weights of the observations, [n], >= 0.
        tol: As in `lower_distance`.

    Returns:
        The distance, []; NaN for NaN.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: a few linear programs on the host for each evaluation, one data set after another.

    Source: Blasiok et al. (2023), Def. 5.3, Section 7.3 and eq. 21.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> targets = jnp.array([0.0, 0.0, 1.0, 1.0])
        >>> def distance(v):
        ...     return jaxcal.dce.lower_distance_value(jnp.full(4, v), targets)
        >>> round(float(jax.grad(distance)(0.7)), 3)
        1.0
    """
    tol = checks.real(tol, "tol", above=0, below=1)
    return _value(tol, *binary(predictions, targets, weights))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value(tol: float, v: Vector, y: Vector, w: Vector) -> Scalar:
    return _call(tol, v, y, w)[0]


@_value.defjvp
def _slope(tol: float, primals: PyTree, tangents: PyTree) -> tuple[Scalar, Scalar]:
    value, *slopes = _call(tol, *primals)
    return value, jnp.sum(jnp.stack(slopes) * jnp.stack(tangents))


def _call(tol: float, v: Vector, y: Vector, w: Vector) -> PyTree:
    like = jax.ShapeDtypeStruct(v.shape, v.dtype)
    shapes = (jax.ShapeDtypeStruct((), v.dtype), like, like, like)
    run = partial(_on_host, tol)
    return jax.pure_callback(run, shapes, v, y, w, vmap_method="sequential")


def _on_host(tol: float, *data: PyTree) -> tuple[PyTree, ...]:
    """Value and slopes in v, y and w [n], by NumPy alone: JAX must not be called from here."""
    kind = np.asarray(data[0]).dtype
    v, y, w = (np.asarray(x, float) for x in data)
    if not np.all(np.isfinite(v + y + w)):
        return tuple(np.full(shape, np.nan, kind) for shape in ((), v.shape, v.shape, v.shape))
    at = places_of(v, None)
    weighted = w > 0
    places, atom = np.unique(at[weighted], return_inverse=True)
    p0, p1 = (np.bincount(atom, (w * x)[weighted], places.size) for x in (1 - y, y))
    distance = lower_of_masses(places, p0, p1, tol=tol, cells=None)
    by_place = np.zeros(v.size)
    by_place[weighted] = (place_slopes(distance, places) / (p0 + p1))[atom]
    a, b = (np.interp(at, distance.places, f) for f in (distance.on_zero, distance.on_one))
    slopes = by_place * w, w * (b - a), (1 - y) * a + y * b
    return tuple(np.asarray(x, kind) for x in (distance.value, *slopes))


def place_slopes(distance: LowerDistance, v: np.ndarray) -> np.ndarray:
    """The slope in each of the different predictions ``v`` [m], by the formula above."""
    c = distance.coupling
    slopes = np.zeros(v.size)
    for j, place in enumerate(v):
        of, at = c.v == place, c.u == place
        slopes[j] = np.sum((np.sign(place - c.u) * c.mass)[of])
        if np.sum(c.mass[of & at]) > 1e-12:
            k = np.searchsorted(distance.places, place)
            price = distance.on_one[k] - distance.on_zero[k]
            slopes[j] += np.sum((np.sign(place - c.v) * c.mass)[at]) - price * np.sum(c.mass[at])
    return slopes
