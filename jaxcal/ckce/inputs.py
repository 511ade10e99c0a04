"""Checks of models, targets, kernel of classes and ridge, and the residuals of class probabilities.

The residuals, one-hot targets minus predictions, are the rows of R; D = R R^T are their products.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxcal.kernels.classes import gram_matrix
from jaxcal.numerics import psd_root
from jaxcal.read import checks, convert
from jaxcal.read.observations import finite_rows
from jaxcal.typing import ArrayLike, DTypeLike, PredictionsLike

Probabilities = Float[Array, "n m"]
Labels = Int[Array, " n"]

COMPONENTS = 30  # largest number of columns of the basis


def checked(predictions: PredictionsLike, targets: ArrayLike) -> tuple[Probabilities, Labels]:
    """Return class probabilities [n, m] and classes [n]; errors name the wrong argument."""
    q = checks.probabilities(predictions, binary=True)
    n, m = q.shape
    return q, checks.labels(targets, n, m)


def standardized(given: ArrayLike | None, n: int, dtype: DTypeLike) -> Float[Array, "n a"] | None:
    """Return ``given`` as columns of mean 0 and deviation 1 (0 if constant); None for None."""
    if given is None:
        return None
    z = finite_rows(given, n, "given").astype(dtype)
    z = z - jnp.mean(z, axis=0, keepdims=True)
    deviation = jnp.std(z, axis=0, keepdims=True)
    return z / jnp.where(deviation > 0, deviation, 1)


def unmerged(given: ArrayLike, n: int, dtype: DTypeLike) -> Float[Array, "n a"]:
    """Return ``given`` as rows of a float type; ValueError, outside of jit, if whole numbers that
    differ, such as group numbers above 2^24 in float32, would become equal."""
    rows = finite_rows(given, n, "given").astype(dtype)
    if isinstance(rows, Tracer):
        return rows
    exact = np.asarray(convert.array(given, "given")).reshape(n, -1)
    for j, (before, after) in enumerate(zip(exact.T, np.asarray(rows).T, strict=True)):
        counts = len(np.unique(before)), len(np.unique(after))
        if counts[1] < counts[0] and np.all(before == np.round(before)):
            raise ValueError(
                f"given: column {j} has {counts[0]} different whole numbers, of which {rows.dtype} "
                f"keeps {counts[1]} apart: number groups 0, 1, .., or subtract the smallest number"
            )
    return rows


def named(models: Any) -> tuple[tuple[str, ...], list[PredictionsLike]]:
    """Return the names and the unchecked predictions of two models or more."""
    if isinstance(models, Mapping):
        names, each = [str(name) for name in models], list(models.values())
    elif not isinstance(models, str) and (
        isinstance(models, Sequence) or getattr(models, "ndim", 0) == 3
    ):
        names, each = [f"model {i}" for i in range(len(models))], list(models)
    else:
        raise TypeError(
            f"models: wanted a mapping from names to predictions, a list of them, or an array "
            f"[M, n, m] of class probabilities, got {convert.say(models)}"
        )
    if len(each) < 2:
        raise ValueError(
            f"models: wanted at least 2 models, got {len(each)}; of one model, "
            f"`jaxcal.calibration_error` estimates the error and `jaxcal.skce_test` tests it"
        )
    return tuple(names), each


def stacked(models: Any) -> tuple[tuple[str, ...], Float[Array, "M n m"]]:
    """Return the names and the checked class probabilities of two models or more."""
    names, each = named(models)
    each = in_one_order(names, each)
    arrays = [
        checks.probabilities(q, f"models[{name}]", binary=True)
        for name, q in zip(names, each, strict=True)
    ]
    if len({a.shape for a in arrays}) > 1:
        shapes = ", ".join(f"{n} {a.shape}" for n, a in zip(names, arrays, strict=True))
        raise ValueError(
            f"models: all models must predict the same observations and classes; got {shapes}"
        )
    return names, jnp.stack(arrays)


def in_one_order(names: tuple[str, ...], models: list[PredictionsLike]) -> list[PredictionsLike]:
    """Return the models, with the columns of data frames in the order of the first frame;
    ValueError if their names differ."""
    ordered: list[Any] = list(models)
    columns = {
        k: list(model.columns)
        for k, model in enumerate(ordered)
        if hasattr(model, "columns") and hasattr(model, "iloc")
    }
    if len(columns) < 2:
        return models
    first, *others = columns
    for k in others:
        if sorted(map(str, columns[k])) != sorted(map(str, columns[first])):
            raise ValueError(
                f"models[{names[k]}]: its columns are {columns[k]!r}, those of {names[first]} "
                f"{columns[first]!r}: name the same classes in both"[:300]
            )
        labels = [str(name) for name in columns[k]]
        ordered[k] = ordered[k].iloc[:, [labels.index(str(name)) for name in columns[first]]]
    return ordered


def class_root(
    target_kernel: ArrayLike | None, m: int, dtype: DTypeLike
) -> Float[Array, "m m"] | None:
    r"""Return a root S of the Gram matrix of the classes, :math:`\Lambda = S S^\top`.

    ``target_kernel``: an array [m, m] or a kernel on classes with an attribute ``matrix``. None and
    `Delta` stand for the identity, for which None is returned. ValueError unless the matrix is
    symmetric and positive semidefinite.
    """
    matrix = getattr(target_kernel, "matrix", target_kernel)
    if matrix is None or type(target_kernel).__name__ == "Delta":
        return None
    if convert.column_names(matrix):  # in the order of the classes
        matrix = gram_matrix(matrix, "target_kernel")
    matrix = convert.array(matrix, "target_kernel")
    if np.shape(matrix) != (m, m):
        raise ValueError(
            f"target_kernel: wanted a Gram matrix of the {m} classes, shape ({m}, {m}), got "
            f"{np.shape(matrix)}"
        )
    return psd_root(gram_matrix(jnp.asarray(matrix).astype(dtype), "target_kernel"))


def residuals(
    q: Probabilities, labels: Labels, root: Float[Array, "m m"] | None = None
) -> Float[Array, "n m"]:
    r"""Return residuals :math:`S^\top (e_{y_i} - q_i)`, whose inner products are the entries of D.

    :math:`D_{ij} = (e_{y_i} - q_i)^\top \Lambda (e_{y_j} - q_j)`, and :math:`\Lambda = S S^\top`
    holds the values of the kernel :math:`\ell` on classes. For Z_i drawn from q_i, this equals
    :math:`\ell(y_i, y_j) - E\ell(Z_i, y_j) - E\ell(y_i, Z_j) + E\ell(Z_i, Z_j)`, with smaller
    rounding errors. ``root``: S; None for I. Source: Moskvichev and Sejdinovic, Section 3.1.
    """
    plain = jax.nn.one_hot(labels, q.shape[1], dtype=q.dtype) - q
    return plain if root is None else plain @ root


# None, a positive number, or a function of n that returns one
Ridge: TypeAlias = ArrayLike | Callable[[int], ArrayLike] | None


def ridge_at(
    ridge: Ridge, n: int, dtype: DTypeLike, *, several: bool = False
) -> Float[Array, "*r"]:
    """Return the ridge for n observations as an array []; with ``several``, also arrays [r].

    ValueError unless it is positive and finite; TypeError if it is no number.
    """
    values: Any = ridge
    if several and (isinstance(values, (list, tuple)) or getattr(values, "ndim", 0) > 0):
        return _several(values, dtype)
    # the default equates the two terms of the estimator's rate (Section 2.3)
    schedule: Any = float(n) ** -0.25 if ridge is None else ridge
    value = schedule(n) if callable(schedule) else schedule
    if isinstance(value, bool) or not isinstance(
        value, (int, float, np.ndarray, np.generic, jax.Array)
    ):
        raise TypeError(
            f"ridge: wanted None for n^(-1/4), a positive number, or a function of n, got "
            f"{type(value).__name__} {value!r}"[:160]
        )
    if np.shape(value) != ():
        raise ValueError(
            f"ridge: wanted one number, got shape {np.shape(value)}; `ckce` takes several"
        )
    if not isinstance(value, Tracer) and not 0 < float(value) < np.inf:
        raise ValueError(
            f"ridge: wanted a positive, finite number, got {float(value)}: without a ridge the "
            f"regression of residuals on predictions fits noise exactly"
        )
    return convert.number(value, "ridge", above=0).astype(dtype)


def _several(ridges: ArrayLike, dtype: DTypeLike) -> Float[Array, " r"]:
    values = convert.floats(ridges, "ridge")
    values = values if isinstance(values, Tracer) else np.asarray(values)
    if values.ndim != 1 or values.size < 1:
        raise ValueError(f"ridge: wanted numbers of shape [r], got shape {values.shape}")
    if not isinstance(values, Tracer) and not np.all((values > 0) & (values < np.inf)):
        raise ValueError(f"ridge: wanted positive, finite numbers, got {values}")
    return jnp.asarray(values).astype(dtype)


def n_components(n: int, m: int, further: int = 0) -> int:
    """Return the number of columns of the basis, max(1, min(m, n // 5, `COMPONENTS`)); ValueError
    if ``further`` variables, which vary more than predictions, would take most of them."""
    used = max(1, min(m, n // 5, COMPONENTS))
    if used < m and further > used // 2:
        raise ValueError(
            f"given: {further} columns leave no room for the predictions in a regression on {used} "
            f"(at most {COMPONENTS}, and a fifth of the smallest group): give fewer columns"
        )
    return used
