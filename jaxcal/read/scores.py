"""Compute scores of predictions: the gradients of their log densities in y."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from jaxcal.numerics import at_least, at_most, middle
from jaxcal.read.families import bare, transforms_of
from jaxcal.read.predictions import Scores, Standardized, Units, Unnormalized, in_units_of_data
from jaxcal.typing import HasScores, Nodes, Points, Predictions, PredictionsLike, Scalar

ROUNDED = 1e-3  # largest distance from 1 of the sum of shares
FLAT = 1e-3  # largest change of a log density next to 0 that counts as none
COARSEST = 3.0  # cap, in deviations, on rounding steps, so that no single target decides


def is_distribution(predictions: object) -> bool:
    """Return whether this behaves like a batch of numpyro distributions."""
    return hasattr(predictions, "log_prob") and hasattr(predictions, "batch_shape")


def is_discrete(predictions: object) -> bool:
    """Return whether this is a distribution of integers."""
    return bool(getattr(predictions, "is_discrete", False))


def score(predictions: PredictionsLike, ys: Float[Array, "n *event"]) -> Float[Array, "n *event"]:
    r"""Return the score :math:`\nabla_y \log f_i(y)` of prediction i at ``ys[i]``, for each row.

    Cost: one gradient of the log density per row. The score is not finite if the log density or its
    gradient is not.
    """
    if isinstance(predictions, Standardized):
        original = predictions.units.original(ys).reshape(-1, *predictions.event)
        values = score(predictions.predictions, original)
        return predictions.units.scores(values.reshape(ys.shape))
    if isinstance(predictions, Unnormalized) or is_distribution(predictions):
        logs, gradients = log_densities_and_gradients(predictions, ys)
        # where the log density is not finite, gradients are meaningless
        reached = jnp.expand_dims(jnp.isfinite(logs), range(logs.ndim, gradients.ndim))
        return jnp.where(reached, gradients, jnp.nan)
    if isinstance(predictions, HasScores):
        return predictions.scores(ys)
    raise TypeError(
        f"predictions: cannot get scores from {type(predictions).__name__}. Pass a numpyro "
        f"distribution with batch shape [n], jaxcal.Unnormalized(log_density, params), "
        f"jaxcal.Scores(arrays), or a pytree with a method scores(ys)"
    )


def log_densities_at(predictions: Any, ys: Shaped[Array, "n *event"]) -> Float[Array, " n"]:
    """Return the log density of prediction i at ``ys[i]``, for each row i, up to a constant of the
    prediction; not finite where the density is 0 or NaN."""
    if isinstance(predictions, Unnormalized):
        density = jax.vmap(predictions.log_density, in_axes=(predictions.in_axes, 0))
        return density(predictions.params, ys)
    if is_distribution(predictions):
        return within_support(predictions, ys, predictions.log_prob(ys))
    raise no_log_densities(predictions)


compiled_log_densities = jax.jit(log_densities_at)  # outside of jit numpyro warns of NaN


def within_support(predictions: Any, ys: Array, logs: Array) -> Array:
    """Return ``logs`` at ``ys``, -infinity outside of the support that a distribution declares:
    numpyro does not check this under ``jit``. Shares may add up to 1 +- `ROUNDED`, as they are
    rounded when stored; for 0 see `_at_zero`. Other predictions: ``logs`` as they are."""
    from numpyro.distributions import constraints

    if not is_distribution(predictions) or not states_an_end(predictions):
        return logs
    inside = predictions.support(ys)
    if predictions.support is constraints.simplex:
        gap = jnp.abs(jnp.sum(ys, axis=-1) - 1)
        inside = jnp.all(ys >= 0, axis=-1) & (gap <= ROUNDED)
    inner, transforms = _transformed(predictions)
    folded = any(type(transform).__name__ == "AbsTransform" for transform in transforms)
    if transforms and not folded:
        inside = inside & _from_support(inner, transforms, ys, inside.ndim)
    return _at_zero(predictions, ys, jnp.where(inside, logs, -jnp.inf))


def _at_zero(predictions: Any, ys: Array, logs: Array) -> Array:
    """Return ``logs`` at ``ys``, corrected at targets 0 that numpyro leaves out of the support.

    A distribution with a ``gate`` gives 0 the probability of the gate. A density of positive
    numbers gives 0, to which small numbers are rounded, its limit, if this is positive and finite.
    """
    from numpyro.distributions import constraints

    base, zero = bare(predictions), ys == 0
    if hasattr(base, "gate"):
        inside = jnp.where(base.support(ys), base.log_prob(ys), -jnp.inf)
        each = jnp.where(zero & ~base.support(ys), jnp.log(base.gate), inside)
    elif getattr(base, "support", None) is constraints.positive and not hasattr(base, "transforms"):
        least = float(jnp.finfo(logs.dtype).tiny)
        near, beside = (ys.astype(logs.dtype) + jnp.where(zero, k * least, 0) for k in (1, 2))
        inside = jnp.where(base.support(near), base.log_prob(near), -jnp.inf)
        flat = jnp.abs(inside - base.log_prob(beside)) < FLAT
        each = jnp.where(zero & ~flat, -jnp.inf, inside)
    else:
        return logs
    event = tuple(range(logs.ndim, zero.ndim))
    return jnp.where(jnp.any(zero, axis=event), jnp.sum(each, axis=event), logs)


def _from_support(inner: Any, transforms: list[Any], ys: Array, axes: int) -> Array:
    """Return whether transforms of values in the support of ``inner`` give ``ys``, in the first
    ``axes`` axes. Targets and their inverses may be rounded by 4 eps."""

    def whole(there: Array) -> Array:
        return jnp.all(there, axis=tuple(range(axes, there.ndim)))

    def reached(at: Array) -> Array:
        there = jnp.ones((), bool)
        for transform in reversed(transforms):
            there, at = there & whole(transform.codomain(at)), transform.inv(at)
        last = [whole(inner.support(rounded)) for rounded in (at, at * near, at / near)]
        return there & (last[0] | last[1] | last[2])

    near = 1 + 4 * jnp.finfo(ys.dtype).eps if jnp.issubdtype(ys.dtype, jnp.floating) else 1
    return reached(ys) | reached(ys * near) | reached(ys / near)


def no_log_densities(predictions: object, what: str = "this") -> TypeError:
    """Return the error for ``predictions`` that lack the log densities which ``what`` needs."""
    return TypeError(
        f"predictions: {what} needs log densities, which {type(predictions).__name__} does not "
        f"give; pass a numpyro distribution with batch shape [n] or "
        f"jaxcal.Unnormalized(log_density, params); calibration_test also takes jaxcal.Draws(array)"
    )


def log_densities_and_gradients(
    predictions: Any, ys: Float[Array, "n *event"]
) -> tuple[Float[Array, " n"], Float[Array, "n *event"]]:
    """Return log densities and their gradients in y, of an `Unnormalized` or a distribution. Where
    the density is 0, gradients are arbitrary, such as 0 for ``where(inside, f, -inf)``."""
    if isinstance(predictions, Unnormalized):
        both = jax.value_and_grad(predictions.log_density, argnums=1)
        return jax.vmap(both, in_axes=(predictions.in_axes, 0))(predictions.params, ys)

    def total(ys: Array) -> tuple[Scalar, Array]:
        logs = predictions.log_prob(ys)
        return jnp.sum(logs), logs

    gradients, logs = jax.grad(total, has_aux=True)(ys)
    return logs, gradients


def signs_reversed(ys: Points, scores: Float[Array, "n d"]) -> Bool[Array, ""]:
    r"""Return whether scores [n, d] at targets [n, d] look like those of minus the log density.

    If y is a draw of p on the whole space, :math:`E\, s(y)^\top (y - c)` is -d for every c if s is
    the score of p, and d if s is the gradient of an energy, :math:`-\log p`. For c the median of
    targets, return whether the mean of :math:`s_i^\top (y_i - c)` exceeds 3 standard errors.
    """
    about = ys - middle(ys)[None]
    return sign_of_sums(sign_sums(about, scores), len(ys))


def sign_sums(ys: Points, scores: Float[Array, "n d"], new: Any = True) -> Float[Array, "2"]:
    """Return, for `sign_of_sums`, the sums over rows i of r_i = s_i . y_i and of r_i^2. Rows that
    ``new`` does not mark, or with infinite or NaN r_i, are left out. ``ys``: centred targets."""
    products = jnp.sum(scores * ys, axis=1)
    products = jnp.where(new & jnp.isfinite(products), products, 0)
    return jnp.stack([jnp.sum(products), jnp.sum(products**2)])


def sign_of_sums(sums: Float[Array, "2"], n: int) -> Bool[Array, ""]:
    """Return `signs_reversed` of n rows from their `sign_sums`."""
    mean, square = sums / n
    error = jnp.sqrt(at_least(square - mean**2, 0) / n)
    return (mean > 3 * error) & (error > 0)


def coarse_sums(
    targets: Float[Array, "n d"], scale: Float[Array, " d"], inverse: Points, new: Any = True
) -> Float[Array, "3 d"]:
    """Return, for `coarse`, the sums [3, d] of a^2, b^2 and c over the rows that ``new`` marks.
    ``inverse`` [n, d]: 1 / standard deviation, or |score|, of the predictions of targets y divided
    by ``scale``. In standard deviations, integers are b = inverse / scale apart, and neighbouring
    floats at y are a = eps |y| b apart. c is 0 if y is an integer, else 1."""
    finest = jnp.finfo(targets.dtype).eps * jnp.abs(targets)
    steps = jnp.stack([finest, jnp.ones_like(finest)])
    apart = jnp.nan_to_num(steps / scale[None, None] * inverse[None], posinf=0)
    broken = (targets != jnp.round(targets)).astype(apart.dtype)
    rows = jnp.concatenate([at_most(apart, COARSEST) ** 2, broken[None]])
    kept = jnp.broadcast_to(jnp.asarray(new), len(targets))
    return jnp.sum(jnp.where(kept[None, :, None], rows, 0), axis=1)


def coarse(sums: Float[Array, "3 d"], n: int) -> dict[str, Bool[Array, ""]]:
    """Return two flags from the `coarse_sums` of n targets: whether calibrated predictions may be
    rejected because floats are rounded ("coarse-targets") or targets are whole ("whole-targets").

    Rounding of targets and centres to multiples of g deviations adds g^2 / 6 to the mean squared
    error in deviations. A flag is set if g^2 / 6 is over half the standard error sqrt(2 / n).
    """
    finest, whole = sums[0], jnp.where(sums[2] == 0, sums[1], 0)
    large, count = jnp.max(jnp.stack([finest, whole]) / n, axis=1) > 3 * (2 / n) ** 0.5
    return {"coarse-targets": large, "whole-targets": count}


def scores_at(
    predictions: PredictionsLike, ys: Points, nodes: Nodes | None, units: Units | None = None
) -> tuple[Float[Array, "n d"], Float[Array, "n m d"] | None]:
    """Return scores [n, d] at targets ``ys``, and scores [n, m, d] at ``nodes`` [m, d] or None.

    They are in ``units``, by default those of ``ys``. For `Scores` the stored scores are taken.
    Else points are visited one at a time, so that memory holds the intermediates of a network for n
    points, not n (m + 1). Cost: n (m + 1) gradients.
    """
    units = Units.unchanged(ys) if units is None else units
    original, (n, d) = in_units_of_data(predictions), ys.shape
    if isinstance(original, Scores):
        stored = original.at_targets.reshape(n, d), original.at_nodes
        stored = stored if stored[1] is None else (stored[0], stored[1].reshape(n, -1, d))
        if isinstance(predictions, Standardized):
            stored = jax.tree.map(predictions.units.scores, stored)
        return jax.tree.map(units.scores, stored)
    if nodes is None:
        return units.scores(score(predictions, ys)), None
    everywhere = jnp.broadcast_to(nodes[:, None, :], (nodes.shape[0], *ys.shape))
    points = jnp.concatenate([ys[None], everywhere.astype(ys.dtype)])
    columns = d * jnp.arange(len(points))

    # written to columns of one array, in which the scores of an observation are contiguous
    def step(values: Array, point: tuple[Array, Points]) -> tuple[Array, None]:
        column, ys = point
        scores = units.scores(score(predictions, ys)).astype(values.dtype)
        return jax.lax.dynamic_update_slice_in_dim(values, scores, column, axis=1), None

    values, _ = jax.lax.scan(step, jnp.zeros((n, len(points) * d), ys.dtype), (columns, points))
    return values[:, :d], values[:, d:].reshape(n, -1, d)


def each_density(
    predictions: Any,
    function: Callable[..., Any],
    ys: Float[Array, "n *event"],
    *rows: Any,
) -> PyTree:
    """Return the values of ``function(log_density, y, *row)`` for n predictions, stacked.

    ``log_density(y)`` is the log density of ONE prediction at any point [*event], up to a constant.
    JAX can differentiate it in every order and mode. It is -infinity outside of the support that a
    distribution declares. ``ys`` are n targets, ``rows`` pytrees with leading axis n. The function
    is called in one ``vmap``. TypeError for predictions without log densities.
    """
    if isinstance(predictions, Unnormalized):

        def of_one(params: PyTree, y: Array, *row: PyTree) -> PyTree:
            return function(lambda z: predictions.log_density(params, z), y, *row)

        axes = (predictions.in_axes, *(0 for _ in (ys, *rows)))
        return jax.vmap(of_one, in_axes=axes)(predictions.params, ys, *rows)
    if not is_distribution(predictions):
        raise no_log_densities(predictions)

    def density(zs: Array) -> Array:
        return within_support(predictions, zs, predictions.log_prob(zs))

    if not predictions.batch_shape:
        return jax.vmap(lambda y, *row: function(density, y, *row))(ys, *rows)

    # log_prob evaluates the whole batch: every row is evaluated with all others and keeps its own.
    # Derivatives are those of the sum over rows, so that they cost n and not n^2
    def row_of(together: Callable[[Array], Array], z: Array) -> Array:
        return together(jax.lax.all_gather(z, "rows"))[jax.lax.axis_index("rows")]

    @jax.custom_jvp
    def log_density(z: Array) -> Array:
        return row_of(density, z)

    @log_density.defjvp
    def slope(primals: PyTree, tangents: PyTree) -> PyTree:
        gradient = row_of(jax.grad(lambda zs: jnp.sum(density(zs))), primals[0])
        return log_density(*primals), jnp.sum(gradient * tangents[0])

    return jax.vmap(lambda y, *row: function(log_density, y, *row), axis_name="rows")(ys, *rows)


def on_whole_space(predictions: Any) -> bool:
    """Return whether a distribution declares that its support is the whole space."""
    from numpyro.distributions import constraints

    def is_whole(support: Any) -> bool:
        while hasattr(support, "base_constraint"):
            support = support.base_constraint
        return support in (constraints.real, constraints.real_vector, constraints.real_matrix)

    inner, transforms = _transformed(predictions)
    whole = is_whole(getattr(inner, "support", None))  # users' distributions may lack it
    for transform in transforms:  # numpyro's affine ones call the image of any support real
        whole = is_whole(transform.codomain) and (whole or not is_whole(transform.domain))
    return whole


def _transformed(predictions: Any) -> tuple[Any, list[Any]]:
    """Return the distribution inside of a transformed one, and the transforms of its values."""
    inner, transforms = bare(predictions), []
    while hasattr(inner, "transforms"):
        transforms = [*transforms_of(inner), *transforms]
        inner = bare(inner.base_dist)
    return inner, transforms


def states_an_end(predictions: Any) -> bool:
    """Return whether a distribution declares that its support has a boundary."""
    return hasattr(predictions, "support") and not on_whole_space(predictions)


def climbable(predictions: Predictions) -> bool:
    """Return whether predictions have log densities, not only scores or draws."""
    original = in_units_of_data(predictions)
    return isinstance(original, Unnormalized) or is_distribution(original)


def _to_first_order(predictions: Standardized, ts: Points) -> tuple[Points, Float[Array, " n"]]:
    """Return scores in the units of the predictions, and log densities up to a constant."""
    original = predictions.units.original(ts).reshape(-1, *predictions.event)
    logs, gradients = log_densities_and_gradients(predictions.predictions, original)
    return predictions.units.scores(gradients.reshape(ts.shape)), logs


def log_densities(predictions: Standardized, ts: Points) -> Float[Array, " n"]:
    """Return the log density of prediction i at ``ts[i]``, up to a constant, for each row."""
    return _to_first_order(predictions, ts)[1]


def to_second_order(
    predictions: Standardized, ts: Points
) -> tuple[Float[Array, " n"], Points, Float[Array, "n d d"]]:
    """Return log densities [n] up to a constant, scores [n, d] and Hessians [n, d, d].

    ``ts``: points [n, d]. Cost per row: a gradient and d Hessian-vector products, one at a time.
    """
    scores, logs = _to_first_order(predictions, ts)

    def along(e: Array) -> Array:
        direction = jnp.broadcast_to(e[None], ts.shape)
        return jax.jvp(lambda ts: _to_first_order(predictions, ts)[0], (ts,), (direction,))[1]

    columns = jax.lax.map(along, jnp.eye(ts.shape[1], dtype=ts.dtype))
    hessians = jnp.moveaxis(columns, 0, 2)
    return logs, scores, (hessians + jnp.swapaxes(hessians, 1, 2)) / 2
