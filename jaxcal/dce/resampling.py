r"""Draw null distributions of measures of calibration, by redrawn labels or random signs.

Labels are redrawn from the predictions, y* ~ Bernoulli(v): given the predictions the test is then
exact for every n ("redraw"). If labels are means, each residual keeps its size and gets a random
sign instead ("signs"), which is exact only for residuals with symmetric distributions and
asymptotically valid otherwise.

Observations with equal prediction and weight are drawn together, as a binomial number of labels 1.
If there are more than 8,192 different predictions, those in a cell of width 1/8192 are drawn
together, at their mean prediction :math:`\bar v`. The sum of N labels with rates :math:`v_i`
differs from this binomial by at most :math:`\sum_i (v_i - \bar v)^2 / (N \bar v (1 - \bar v))` in
total variation (Ehm 1991). These differences sum to less than .001 over all cells.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from jaxcal.dce.intervals import boxcars
from jaxcal.dce.predictions import Binary, Ordered, merged, one_by_one
from jaxcal.dce.smooth import decaying_sums
from jaxcal.nulls.contract import p_value
from jaxcal.numerics import at_least, group_sums, largest, smallest
from jaxcal.read import convert
from jaxcal.results import Sentences, too_few_draws
from jaxcal.typing import Key, Scalar, Vector

Null = Literal["redraw", "signs"]
BATCH = 2**22  # numbers per batch of draws, on other devices than a CPU
CELLS = 8192  # cells of predictions whose labels are drawn together
FEW = 10  # most labels for which `least_p_value` enumerates all values


def drawable(data: Ordered, *, equal: bool, null: Null) -> Ordered:
    """Group the data by distinct predictions or by cells, so that they are faster to redraw. Do
    nothing if weights are not ``equal``, if ``null`` is "signs", or if groups would save little."""
    if equal and null == "redraw":
        if not isinstance(data.v, Tracer):
            if data.labels is not None and np.any(some := np.asarray(data.labels) > 0):
                data = Ordered(*(jnp.asarray(np.asarray(x)[some]) for x in data))  # no empty groups
            distribution, atom = merged(data)
            if atom is not None and (m := distribution.v.size) <= CELLS:
                return Ordered(*distribution[:3], jnp.arange(m), distribution.labels)
        if data.v.size > CELLS:
            return _cells(data)
    return data


@jax.jit
def _cells(data: Ordered) -> Ordered:
    cell = jnp.clip(jnp.nan_to_num(data.v) * CELLS, 0, CELLS - 1).astype(jnp.int32)
    one = jnp.ones_like(data.v) if data.labels is None else data.labels
    parts = one, one * data.v, one * data.y
    count, v, y = (group_sums(x, cell, CELLS) for x in parts)
    some = at_least(count, 1)
    middle = (jnp.arange(CELLS, dtype=v.dtype) + 0.5) / CELLS
    v = jnp.where(count > 0, v / some, middle)
    return Ordered(v, y / some, count / jnp.sum(count), jnp.arange(CELLS), count)


def kernel_statistic(v: Vector, rho: Vector) -> Scalar:
    """Return the squared kernel calibration error, [], with the Laplace kernel of bandwidth 1."""
    left, _ = decaying_sums(v, rho, jnp.ones((), v.dtype))
    return jnp.sum(rho * (2 * left - rho))


class RandomIntervals(NamedTuple):
    """Function of (v, rho): surrogate interval calibration error of widths 1, 1/2, .., 2^-k_max."""

    k_max: int

    def __call__(self, v: Vector, rho: Vector) -> Scalar:
        widths = 2.0 ** -jnp.arange(self.k_max + 1, dtype=v.dtype)
        return smallest(boxcars(v, rho, widths) + widths)


def suitable_null(null: object, data: Binary) -> Null:
    """Return ``null``, or a default if it is None: "signs" for means of labels, else "redraw".
    Under jit the default is "redraw". ValueError for "redraw" of means, outside of jit only."""
    convert.choice(null, "null", (None, "redraw", "signs"))
    if null == "signs":
        return "signs"
    if isinstance(data.y, Tracer) or data.labels is not None or bool(binary_labels(data.y)):
        return "redraw"
    if null == "redraw":
        raise ValueError("null='redraw' draws labels 0 or 1, targets hold means: use 'signs'")
    return "signs"


def null_draws(
    key: Key, data: Ordered, *, statistic: Any, n_draws: int, null: Null = "redraw"
) -> Float[Array, " b"]:
    """Return values of ``statistic(v, rho)`` for weighted residuals rho drawn under calibration."""
    v, y, w, _, labels = data

    def one(key: Key) -> Scalar:
        if labels is None:
            if null == "signs":
                return statistic(v, jax.random.rademacher(key, v.shape, v.dtype) * data.rho)
            return statistic(v, w * (jax.random.bernoulli(key, v).astype(v.dtype) - v))
        single = w / jnp.where(labels > 0, labels, 1)  # weight of one label
        if null == "redraw":
            ones = jax.random.binomial(key, labels, v, dtype=v.dtype)
            return statistic(v, single * (ones - labels * v))
        # sums of signs of labels 1 (residual 1 - v) and of labels 0 (residual -v)
        sizes = jnp.round(jnp.stack([labels * y, labels * (1 - y)]))  # 1.9999999 is drawn as 1
        signs = 2 * jax.random.binomial(key, sizes, 0.5, dtype=v.dtype) - sizes
        return statistic(v, single * ((1 - v) * signs[0] - v * signs[1]))

    return _walk(one, jax.random.split(key, n_draws), v.size)


class CalibrationTest(NamedTuple):
    """Result of a test: ``statistic`` [], ``p_value`` [], ``null_samples`` [b], and ``least`` [],
    the smallest p-value that any labels could give; None for more than ten labels."""

    statistic: Scalar
    p_value: Scalar
    null_samples: Float[Array, " b"]
    least: Scalar | None = None


def label_test(
    key: Key, data: Ordered, *, statistic: Any, equal: bool, n_draws: int, null: Null
) -> CalibrationTest:
    """Return the `CalibrationTest`. ``equal``: whether all weights are equal. The p-value is NaN if
    ``null`` is "redraw" and labels are means."""
    drawn = drawable(data, equal=equal, null=null)
    test = resampling_test(key, drawn, statistic=statistic, n_draws=n_draws, null=null)
    p = test.p_value
    if null == "redraw" and data.labels is None:
        p = jnp.where(binary_labels(data.y), p, jnp.nan)
    few = number(data) <= FEW
    return test._replace(
        p_value=p, least=least_p_value(one_by_one(data), statistic, null) if few else None
    )


def number(data: Binary | Ordered) -> int:
    """Return the number of labels; without groups that is the number of observations."""
    return data.v.size if data.labels is None else round(float(jnp.sum(data.labels)))


@partial(jax.jit, static_argnames=("statistic", "null"))
def least_p_value(data: Ordered, statistic: Any, null: Null) -> Scalar:
    """Return the p-value, [], of those labels (or signs) that have the largest statistic."""
    n = data.v.size
    one = (jnp.arange(2**n)[:, None] >> jnp.arange(n)[None]) % 2 == 1
    if null == "signs":
        rho = jnp.where(one, data.rho[None], -data.rho[None])
        probability = jnp.full(2**n, 0.5**n, data.v.dtype)
    else:
        rho = data.w[None] * (one.astype(data.v.dtype) - data.v[None])
        probability = jnp.prod(jnp.where(one, data.v[None], 1 - data.v[None]), axis=1)
    values = jax.lax.map(lambda rho: statistic(data.v, rho), rho)
    most = largest(values)
    slack = 16 * jnp.finfo(most.dtype).eps * (jnp.abs(most) + jnp.sum(data.w**2))
    return jnp.sum(jnp.where(values >= most - slack, probability, 0))


def no_verdict(result: Any) -> Sentences:
    """Return pairs (reason for no verdict, whether it applies). ``result`` must have attributes
    p_value, adjusted, statistic, null_samples, least_p_value, null and level."""
    is_nan = np.isnan(np.asarray(result.p_value))
    tests = (np.shape(result.adjusted) or (1,))[-1]  # classes that share the level
    few = too_few_draws(result, tests)
    p = np.asarray(result.p_value if result.adjusted is None else result.adjusted)
    least = 0 if result.least_p_value is None else np.asarray(result.least_p_value)
    return [
        (
            "the p-value is NaN: labels are means, which are not drawn again from the predictions; "
            "under jit say null='signs'",
            is_nan & np.isfinite(np.asarray(result.statistic)),
        ),
        ("the data hold NaN, or values outside [0, 1]", is_nan),
        (few, bool(few)),
        (
            "no labels of so few observations could be rejected: the least p-value that any could "
            "have is above the level [too-few-observations]",
            (tests * least > result.level) & (p > result.level),
        ),
    ]


@partial(jax.jit, static_argnames=("statistic", "n_draws", "null"))
def resampling_test(
    key: Key, data: Ordered, *, statistic: Any, n_draws: int, null: Null
) -> CalibrationTest:
    """Return the `CalibrationTest`, with ``least`` None. The data count as one of the draws."""
    value = statistic(data.v, data.rho)
    draws = null_draws(key, data, statistic=statistic, n_draws=n_draws, null=null)
    # draws that equal the statistic up to rounding must count as equal
    slack = 16 * jnp.finfo(value.dtype).eps * (jnp.abs(value) + jnp.sum(data.squares))
    p = p_value((value - slack)[None], draws[None])[0]
    return CalibrationTest(value, p, draws)


def _walk(one: Any, keys: Any, n: int) -> Array:
    """Return ``one(key)`` for every key, [b]. On a CPU keys are processed one after another; on
    other devices in batches that bound memory. ``n``: number of values that one draw needs."""
    if jax.default_backend() == "cpu":
        return jax.lax.map(one, keys)
    batch = min(keys.shape[0], max(1, BATCH // n))
    if batch >= keys.shape[0]:
        return jax.vmap(one)(keys)
    return jax.lax.map(one, keys, batch_size=batch)


@jax.jit
def binary_labels(y: Vector) -> Bool[Array, ""]:
    """Return whether all labels are 0 or 1."""
    return jnp.all((y == 0) | (y == 1))
