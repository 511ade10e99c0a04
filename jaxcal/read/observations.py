"""Match predictions with targets, find repeated rows of data, and draw a random order of rows.

Repeated rows are found by sorting hashes of 32 pseudorandom bits. About n^2 / 2^33 pairs of unequal
rows have equal hashes: 1 for 10^5 rows. A random order depends on rows and key only.
"""

from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, PyTree, UInt32

from jaxcal.read import Draws, Scores, Unnormalized, checks, convert
from jaxcal.read.convert import brought
from jaxcal.read.families import Classes, Mixtures, bare, distribution_of
from jaxcal.read.scores import is_discrete, is_distribution, no_log_densities
from jaxcal.typing import ArrayLike, Key, PredictionsLike


def observations(predictions: Any, targets: ArrayLike, *, least: int = 2) -> tuple[Any, Array]:
    """Return validated predictions and targets: `Classes` with integer labels, or predictions of
    vectors with float targets. ValueError if there are fewer than ``least`` targets."""
    checks.of_jax(predictions)
    if isinstance(predictions, Classes):
        return _classes(predictions.probabilities, targets, "predictions", least)
    if isinstance(predictions, (jax.Array, list, tuple)) or brought(predictions):
        return _classes(predictions, targets, "predictions", least)
    if is_distribution(predictions):
        distribution = distribution_of(predictions)
        if isinstance(distribution, Classes):
            return _classes(distribution.probabilities, targets, "predictions", least)
        if distribution is None and _integers(targets):
            targets = jnp.asarray(convert.array(targets, "targets").astype(jnp.result_type(float)))
    ys = checks.targets(targets, least=least)
    n, event = ys.shape[0], ys.shape[1:]
    if isinstance(getattr(predictions, "draws", None), Draws):
        predictions = predictions.draws  # of an MCMC result
    if isinstance(predictions, Draws):
        samples = convert.floats(predictions.samples, "Draws.samples")
        if samples.ndim != ys.ndim + 1 or (samples.shape[0], *samples.shape[2:]) != (n, *event):
            raise ValueError(
                f"Draws.samples: wanted shape ({n}, m{''.join(f', {e}' for e in event)}), m draws "
                f"of each prediction, got {samples.shape}"
            )
        if samples.shape[1] < 4:
            raise ValueError(
                f"Draws.samples: wanted at least 4 draws of each prediction, half for the distance "
                f"between predictions and half for their means, got {samples.shape[1]}"
            )
        rhat = predictions.rhat
        if rhat is not None and (rhat := convert.floats(rhat, "Draws.rhat")).shape != (n,):
            raise ValueError(f"Draws.rhat: wanted shape ({n},), got {rhat.shape}")
        return Draws(samples, rhat).unsorted(), ys
    if isinstance(predictions, (Unnormalized, Scores)):
        raise TypeError(
            f"predictions: SKCE needs kernel means or draws, which {type(predictions).__name__} "
            f"does not give: use kccsd_test, or draw from the densities by jaxcal.mcmc.mcmc_draws "
            f"and pass what it returns"
        )
    if getattr(predictions, "batch_shape", None) == ():
        predictions = getattr(predictions, "expand")((n,))  # noqa: B009
    return checks.predictions(predictions, ys), ys


def _integers(targets: ArrayLike) -> bool:
    kind = convert.array(targets, "targets").dtype
    return jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.bool_)


def _classes(
    predictions: PredictionsLike, targets: ArrayLike, name: str, least: int
) -> tuple[Classes, Array]:
    p = convert.floats(predictions, name)
    if p.ndim == 1:
        predictions = p = checks.probabilities(p, name, binary=True)
    if p.ndim == 2 and not _integers(targets):
        shape = np.shape(convert.array(targets, "targets"))
        remedy = (
            "for one-hot rows pass targets.argmax(1)"
            if shape == p.shape
            else "for whole numbers pass targets.astype(int)"
        )
        raise TypeError(
            f"targets: wanted integer classes 0, .., m - 1, as an array of predictions is read as "
            f"class probabilities; got {convert.say(targets)}: {remedy}, or wrap predictions that "
            f"are draws as jaxcal.Draws(array)"
        )
    p = checks.probabilities(predictions, name)
    ys = checks.labels(targets, p.shape[0], p.shape[1])
    if len(ys) < least:
        raise ValueError(f"targets: wanted at least {least} observations, got shape {ys.shape}")
    return Classes(p), ys


def check_parameters(distribution: Any) -> None:
    """Raise ValueError for mixture weights that are not probabilities; not checked under jit."""
    if isinstance(distribution, Mixtures):
        checks.probabilities(distribution.weights, "predictions: the weights of the mixture")


def finite_rows(value: object, n: int, name: str) -> Array:
    """Return rows [n, q] by `checks.rows`; ValueError, outside of jit, for NaN or infinity."""
    vectors = checks.rows(value, n, name)
    finite = jnp.all(jnp.isfinite(vectors), axis=0)
    if not isinstance(finite, Tracer) and not jnp.all(finite):
        raise ValueError(
            f"{name}: column {int(jnp.argmin(finite))} holds NaN or infinite values: leave these "
            f"observations out, or fill the gaps and mark them by a column of 0 and 1"
        )
    return vectors


def densities(value: Any, ys: Array) -> Any:
    """Return validated predictions; TypeError without log densities, or for ``Categorical``."""
    if not (isinstance(value, Unnormalized) or is_distribution(value)):
        raise no_log_densities(value)
    classes = is_distribution(value) and isinstance(distribution_of(value), Classes)
    if classes and not type(bare(value)).__name__.startswith("Bernoulli"):
        raise TypeError(
            f"predictions: {type(value).__name__} predicts classes: take skce_test, or "
            f"jaxcal.check, which selects the tests"
        )
    return checks.predictions(value, ys)


def scored(value: Any, ys: Array, name: str = "predictions") -> Any:
    """Return predictions validated for scores; TypeError for distributions of integers."""
    continuous(value, name)
    return checks.predictions(value, ys, name)


def continuous(value: Any, name: str = "predictions") -> None:
    """Raise TypeError for distributions of integers."""
    if is_discrete(value):
        raise TypeError(
            f"{name}: {type(value).__name__} predicts whole numbers, but this needs scores or "
            f"small moves, so continuous targets: take skce_test or, for counts, calibration_test"
        )


Words = TypeVar("Words", UInt32[Array, "*s"], UInt32[np.ndarray, "*s"])
SHARE = 0.01  # share of observations up to which repeats are not reported
DIFFER = 7.0  # expected number of unequal pairs of labels; P(none is unequal) <= e^-7
FLOAT32 = 2.0**-22  # times n^2: four times the chance repeats of float32 draws from a density
# several predictions share each target if at least DIFFERENT distinct targets occur, at most the
# share ALONE of rows has a unique target, and counts have a variance below EVEN times their mean
DIFFERENT, ALONE, EVEN = 20, 0.1, 0.25


def fingerprints(tree: PyTree, n: int) -> UInt32[Array, " n"]:
    """Return a 32-bit hash of each row, over all arrays with n rows in a pytree."""
    bits = jnp.zeros(n, jnp.uint32)
    for place, leaf in enumerate(jax.tree.leaves(tree)):
        if _has_rows(leaf, n):
            words = _mixed(_words(jax.lax.stop_gradient(jnp.asarray(leaf))))
            count = np.arange(1, words.shape[1] + 1, dtype=np.uint32)
            columns = _mixed(count * np.uint32(0x9E3779B9) + np.uint32(place + 1))
            bits += jnp.sum(_mixed(words ^ columns[None]), axis=1, dtype=jnp.uint32)
    return bits


@partial(jax.jit, static_argnames="n")
def drawn_order(key: Key, n: int, tree: PyTree, ties: PyTree = None) -> Int[Array, " n"]:
    """Return a random order of row numbers; permuted data give the same sequence of rows.

    Rows are the entries of ``tree``; ``ties`` distinguishes rows that are equal in ``tree``.
    Cost O(n log n).
    """
    order = jnp.lexsort((fingerprints(ties, n), fingerprints(tree, n)))
    return order[jax.random.permutation(key, n)]


def repeated_rows(
    targets: Array, of_targets: UInt32[Array, " n"], of_predictions: UInt32[Array, " n"]
) -> Int[Array, ""]:
    """Return how many of n observations repeat another one, from `fingerprints`. Cost O(n log n).

    Let t count distinct targets and p distinct pairs (target, prediction). The first match decides:

    - integer targets: 0;
    - almost all targets occur several times, and about equally often (`_evenly_often`): n - t;
    - n - p is at most 0.01 n or, in float32, n^2 / 2^22, which may be chance: 0;
    - targets look discrete, by n - t > 1.5 (n - p), p > 1.5 t, or one prediction and t < n / 3: 0;
    - otherwise n - p.
    """
    n = of_targets.size
    if not jnp.issubdtype(targets.dtype, jnp.inexact):
        return jnp.zeros((), jnp.int32)
    both = jnp.stack([_mixed(of_targets) + of_predictions, of_targets])
    ordered = jnp.sort(both, axis=1)
    repeats = ordered[:, 1:] == ordered[:, :-1]
    pairs, alone = jnp.sum(repeats, axis=1, dtype=jnp.int32)
    one_prediction = jnp.all(of_predictions == of_predictions[0])
    discrete = (2 * alone > 3 * pairs) | (2 * (n - pairs) > 3 * (n - alone))
    discrete |= one_prediction & (3 * (n - alone) < n)
    limit = int(max(SHARE * n, FLOAT32 * n**2 if targets.dtype.itemsize <= 4 else 0.0))
    counted = jnp.where(discrete | (pairs <= limit), jnp.zeros_like(pairs), pairs)
    return jnp.where(_evenly_often(repeats[1]), alone, counted)


def _evenly_often(repeats: Bool[Array, " m"]) -> Bool[Array, ""]:
    """Return whether sorted values occur several times each, and about equally often. ``repeats``:
    whether a value equals the one before it. For rounded draws the counts of values would be
    Poisson, with equal mean and variance; here the variance must be far below the mean."""
    first = jnp.concatenate([jnp.ones(1, bool), ~repeats])
    places = jnp.cumsum(first) - 1
    counts = jnp.zeros(len(first), jnp.float32).at[places].add(1)
    different = jnp.sum(first, dtype=jnp.float32)
    mean = len(first) / different
    variance = jnp.sum(jnp.where(counts > 0, (counts - mean) ** 2, 0)) / different
    few_alone = jnp.sum(counts == 1) <= int(ALONE * len(first))
    return (different >= DIFFERENT) & few_alone & (variance < EVEN * mean)


def n_repeated(targets: Array, predictions: PyTree, beside: PyTree = None) -> Int[Array, ""]:
    """Return how many rows repeat another one, by `repeated_rows` or, for classes, by `copies`."""
    if isinstance(predictions, Classes):
        return jnp.sum(copies(targets, predictions, beside), dtype=jnp.int32)
    return _n_repeated(targets, _arrays((predictions, beside), len(targets)))


@jax.jit
def _n_repeated(targets: Array, arrays: list[Array]) -> Int[Array, ""]:
    n = len(targets)
    return repeated_rows(targets, fingerprints(targets, n), fingerprints(arrays, n))


def _arrays(tree: PyTree, n: int) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if _has_rows(leaf, n)]


def copies(targets: Array, predictions: PyTree, beside: PyTree = None) -> Bool[Array, " n"]:
    """Return a mask of the rows (target, prediction, ``beside``) that repeat an earlier one; all
    False if such repeats may be chance (`repeated_rows`).

    For classes, repeats are rows with the probabilities p and ``beside`` of an earlier row. They
    are marked if they exceed `SHARE` of the rows and all have the label of the earlier row, but
    more than `DIFFER` other labels are expected: the sum over repeats of 1 - max(p . p, f . f), f
    the label frequencies of distinct rows with the same likeliest class.
    """
    p = predictions.probabilities if isinstance(predictions, Classes) else None
    return _copies(targets, p, _arrays((predictions, beside), len(targets)))


@jax.jit
def _copies(targets: Array, p: Array | None, arrays: list[Array]) -> Bool[Array, " n"]:
    n = len(targets)
    bits = fingerprints(targets, n), fingerprints(arrays, n)
    classes = p is not None
    both = bits[1] if classes else _mixed(bits[0]) + bits[1]
    order = jnp.argsort(both)
    same = both[order][1:] == both[order][:-1]
    if classes:
        p, ys = p[order], targets[order].astype(int)
        likely, one_of_each = jnp.argmax(p, axis=1), jnp.concatenate([jnp.ones(1, bool), ~same])
        seen = jnp.zeros((p.shape[1],) * 2, p.dtype).at[likely, ys].add(one_of_each.astype(p.dtype))
        seen = seen / jnp.maximum(jnp.sum(seen, axis=1, keepdims=True), 1)
        most = jnp.maximum(jnp.sum(p**2, axis=1), jnp.sum(seen**2, axis=1)[likely])
        differ = jnp.sum(jnp.where(same, 1 - most[1:], 0))
        shown = (differ > DIFFER) & jnp.all(~same | (ys[1:] == ys[:-1]))
        shown &= jnp.sum(same) > int(SHARE * n)
    else:
        shown = repeated_rows(targets, *bits) > 0
    again = jnp.concatenate([jnp.zeros(1, bool), same & shown])
    return jnp.zeros(n, bool).at[order].set(again)


def _has_rows(leaf: Any, n: int) -> bool:
    kinds = (jnp.number, jnp.bool_)
    rows = getattr(leaf, "shape", ())[:1] == (n,)
    return rows and any(jnp.issubdtype(leaf.dtype, kind) for kind in kinds)


def _words(leaf: Array) -> UInt32[Array, "n k"]:
    rows = leaf.reshape(leaf.shape[0], -1)
    if jnp.issubdtype(rows.dtype, jnp.complexfloating):
        rows = jnp.concatenate([rows.real, rows.imag], axis=1)
    if rows.dtype.itemsize < 4:
        rows = rows.astype(jnp.float32)
    return jax.lax.bitcast_convert_type(rows, jnp.uint32).reshape(rows.shape[0], -1)


def _mixed(words: Words) -> Words:
    """Return words scrambled by the finalizer of MurmurHash3 (Appleby, 2011)."""
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)
