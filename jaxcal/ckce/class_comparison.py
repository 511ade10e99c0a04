"""Compute calibration errors and skill of class probabilities, by model or group of one model."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PyTree

from jaxcal.ckce import kernels
from jaxcal.ckce.errors import judged
from jaxcal.ckce.expansion import ByKernel
from jaxcal.ckce.inputs import (
    Ridge,
    checked,
    class_root,
    n_components,
    residuals,
    ridge_at,
    stacked,
    standardized,
)
from jaxcal.ckce.probability import Probability, says
from jaxcal.divergences.vectors import Vectors
from jaxcal.engine import one_at_a_time
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.kernels.points import Gaussian
from jaxcal.read import checks, convert
from jaxcal.read.families import Classes
from jaxcal.read.observations import n_repeated
from jaxcal.results import rows_in_one_order
from jaxcal.results.notes import memory
from jaxcal.typing import ArrayLike, Contents, KernelLike, Key, Scalar

LONG = 3e10  # multiplications (a few seconds on a CPU) above which a progress bar is shown
Measure = Probability | ByKernel


class Problem(NamedTuple):
    """The models or groups that are compared: names, predictions, weights of the observations (1
    for members of a group, else 0), labels, size of the smallest group, standardized variables."""

    names: tuple[str, ...]
    stack: Float[Array, "M n m"]
    weights: Float[Array, "M n"]
    labels: Int[Array, " n"]
    things: str  # "models" or "groups"
    smallest: int
    variables: Float[Array, "n a"] | None


def of_models(models: Any, targets: ArrayLike, given: ArrayLike | None) -> Problem:
    """Return the checked problem of several models on the same observations."""
    names, stack = stacked(models)
    _, n, m = stack.shape
    if n < 3:
        raise ValueError(f"targets: comparing needs at least 3 observations, got n={n}")
    weights = jnp.ones(stack.shape[:2], stack.dtype)
    labels, variables = checks.labels(targets, n, m), standardized(given, n, stack.dtype)
    return Problem(names, stack, weights, labels, "models", n, variables)


def of_groups(predictions: Any, targets: ArrayLike, groups: Any, given: Any) -> Problem:
    """Return the checked problem of groups of the observations of one model."""
    try:
        q = checks.probabilities(predictions, binary=True)
    except (TypeError, ValueError) as error:
        raise type(error)(f"models: groups are those of one model; {error}") from None
    n, m = q.shape
    labels = checks.labels(targets, n, m)
    names, weights = grouped(groups, n)
    stack = jnp.broadcast_to(q, (len(names), n, m))
    smallest = int(np.min(np.sum(weights, axis=1)))
    variables = standardized(given, n, q.dtype)
    weights = jnp.asarray(weights, q.dtype)
    return Problem(names, stack, weights, labels, "groups", smallest, variables)


def grouped(groups: Any, n: int) -> tuple[tuple[str, ...], Float[np.ndarray, "g n"]]:
    """Return the names of the groups, and weights [g, n]: 1 for members of the group, else 0."""
    if isinstance(groups, Tracer):
        raise TypeError("groups: inside jit or vmap close over them, as they decide shapes")
    try:
        labels = np.asarray(groups.detach().cpu() if hasattr(groups, "detach") else groups)
    except ValueError:  # rows of several lengths
        labels = np.zeros(0)
    if labels.ndim != 1 or not labels.size or labels.dtype.kind not in "iubUSO":
        raise ValueError(f"groups: wanted text or integers of shape [n], got {convert.say(groups)}")
    if labels.size != n:
        raise ValueError(f"groups: wanted one for each of {n} observations, got {labels.size}")
    text = labels.dtype.kind in "USO"
    names, place, sizes = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise ValueError(f"groups: wanted at least 2 groups, got {len(names)}")
    if min(sizes) < 3:
        least = f"{min(sizes)} of {str(names[np.argmin(sizes)])!r}"
        raise ValueError(f"groups: comparing needs at least 3 observations of each, got {least}")
    named = tuple(name if text else f"group {name}" for name in names.tolist())
    return named, (place == np.arange(len(names))[:, None]).astype(float)


def by_probability(problem: Problem) -> Probability:
    """Return the measure "probability". The smallest group limits the number of regressors."""
    z = problem.variables
    further = 0 if z is None else z.shape[1]
    rank = n_components(problem.smallest, problem.stack.shape[2] + further, further)
    return Probability(rank, z)


def default_rank(n: int, m: int) -> int:
    """Return the rank of `compare` for n predictions, min(n, max(128, 2 m + 8 n^(1/4))).

    n times the default ridge is n^(3/4). Gram matrix eigenvalues far below this are negligible.
    The trace of the matrix is at most 2 n, so at most 8 n^(1/4) eigenvalues exceed n^(3/4) / 4. The
    linear part of the kernel has rank m.
    """
    return min(n, max(128, 2 * m + int(8 * n**0.25)))


def by_kernel(
    problem: Problem,
    measure: str,
    *,
    rank: int | None,
    prediction_kernel: KernelLike | None,
    target_kernel: ArrayLike | None,
    ridge: Ridge,
    bandwidth: ArrayLike | str | None,
) -> ByKernel:
    """Return the measure "ckce" or "skce"; the arguments are those of `compare`. All groups have
    the same bandwidth, because their predictions are those of one model."""
    count, n, m = problem.stack.shape
    dtype, models = problem.stack.dtype, problem.things == "models"
    kernel = prediction_kernel
    if kernel is None:
        kernel = kernels.simplex_kernel() if measure == "ckce" else Gaussian()
    kernel = points.as_kernel(kernel, "prediction_kernel")
    kernels.check_bandwidth(kernel, m)
    width = None  # the median distance of each model's predictions
    if bandwidth is not None and not isinstance(bandwidth, str):
        width = convert.number(bandwidth, "bandwidth", above=0).astype(dtype)
    elif models and bandwidth != "own":
        width = pooled(problem.stack)
    return ByKernel(
        kernel,
        class_root(target_kernel, m, dtype),
        ridge_at(ridge, n if models else n // count, dtype) if measure == "ckce" else None,
        width,
        default_rank(n, m) if rank is None else min(convert.integer(rank, "rank"), n),
        None if problem.variables is None else (problem.variables, Gaussian()),
    )


@jax.jit
def pooled(models: Float[Array, "M n m"]) -> Scalar:
    r"""Return one bandwidth for all models, :math:`\sum_k m_k^2 / \sum_k m_k`; 1 if all m_k are 0.

    m_k is the median distance of two different predictions of model k, or 0 if all its predictions
    are equal or the median is not finite. With a bandwidth far below m_k, the Gram matrix of model
    k would be nearly the identity, and its CKCE would be noise. A bandwidth far above m_k is less
    harmful: predictions that differ little then count as equal.
    """

    def of_one(q: Array) -> Array:
        length, one_prediction = median_heuristic(Vectors(q), q)
        return jnp.where(one_prediction | ~jnp.isfinite(length), 0, length)

    return kernels.weighted_by_itself(jax.lax.map(of_one, models))


def compared(
    key: Key, problem: Problem, measure: Measure, n_draws: int, level: float | Scalar
) -> Contents:
    """Return the fields of a `Comparison` by ``measure``.

    If that takes more than a few seconds, a progress bar on stderr counts the models or groups.
    """
    errors_key, draws_key = jax.random.split(key)
    stack, weights, labels = problem.stack, problem.weights, problem.labels
    shared = (errors_key, draws_key, labels, measure)
    count, n, _ = stack.shape
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((stack, shared)))
    if not traced and count * n * measure.rank**2 > LONG:
        from tqdm import tqdm

        each = []
        for i in tqdm(range(count), desc="compare", unit=problem.things[:-1], leave=False):
            each.append(_errors(stack[i][None], weights[i][None], shared, n_draws))
            jax.block_until_ready(each[-1])
        errors, others = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *each)
    else:
        errors, others = _errors(stack, weights, shared, n_draws)
    if "ridge" in others:
        others["ridge"] = others["ridge"][0]
    counts = {
        "n": n,
        "memory": _lags(stack, labels),
        "repeated": n_repeated(labels, Classes(stack[0]), jnp.swapaxes(stack[1:], 0, 1)),
    }
    return judged(draws_key, errors, level, measure.largest) | others | counts


@jax.jit
def _lags(stack: Array, labels: Array) -> Float[Array, " k"]:
    return jax.vmap(lambda q: memory(residuals(q, labels), labels[:, None]))(stack)


@eqx.filter_jit
def _errors(
    stack: Array, weights: Array, shared: tuple[PyTree, ...], n_draws: int
) -> tuple[PyTree, Contents]:
    """Return each model's `Error` (on a CPU one by one) and other fields of a `Comparison`."""

    @one_at_a_time
    def one(q: Array, weight: Array, shared: tuple[PyTree, ...]) -> tuple[PyTree, Contents]:
        errors_key, draws_key, labels, measure = shared
        return measure(errors_key, draws_key, q, weight, labels, n_draws)

    def of_labels(q: Array, weight: Array) -> Contents:
        labels = shared[2]
        return {"says": says(q, labels, weight), "skill": mean_skill(q, labels, weight)}

    errors, others = jax.vmap(lambda q, weight: one(q, weight, shared))(stack, weights)
    return errors, others | jax.vmap(of_labels)(stack, weights)


def mean_skill(q: Array, labels: Array, weights: Array) -> dict[str, Scalar]:
    """Return {"accuracy": [], "log": [], "Brier": []}, weighted means over the observations."""
    each = jax.vmap(lambda q, label: skill(q[None], label[None]))(q, labels)
    means = [jnp.sum(jnp.where(weights > 0, a, 0)) / jnp.sum(weights) for a in each]
    return dict(zip(("accuracy", "log", "Brier"), means, strict=True))


class Skill(NamedTuple):
    """Accuracy and two proper scores: means over observations.

    Attributes:
        accuracy: Share of observations whose most probable class is the target, [].
        cross_entropy: Mean negative log probability of the target, in nats, [].
        brier: Mean of the sum over classes of squared errors, [], between 0 and 2.
    """

    accuracy: Scalar
    cross_entropy: Scalar
    brier: Scalar


@rows_in_one_order
def skill(predictions: ArrayLike, targets: ArrayLike) -> Skill:
    """Return accuracy, cross-entropy and Brier score of class probabilities.

    The cross-entropy is infinite if a target has probability 0.

    Args:
        predictions: Class probabilities, [n, m].
        targets: Classes 0, .., m - 1, [n].

    Returns:
        `Skill`.

    Cost: O(n m).

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> skill = jaxcal.ckce.skill(jnp.array([[0.75, 0.25]] * 4), jnp.array([0, 0, 0, 1]))
        >>> float(skill.accuracy)
        0.75
    """
    return _skill(*checked(predictions, targets))


@jax.jit
def _skill(q: Array, labels: Array) -> Skill:
    probability = jnp.take_along_axis(q, labels[:, None], axis=1)[:, 0]
    return Skill(
        jnp.mean((jnp.argmax(q, axis=1).astype(labels.dtype) == labels).astype(q.dtype)),
        -jnp.mean(jnp.log(probability)),
        jnp.mean(jnp.sum(residuals(q, labels) ** 2, axis=1)),
    )
