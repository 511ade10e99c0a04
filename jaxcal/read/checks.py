"""Validation of arguments; errors name the argument, the expected and the actual value."""

from collections.abc import Iterable, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jaxtyping import Array

from jaxcal.read import Draws, Scores, Unnormalized
from jaxcal.read.convert import array, class_columns, floats, integer, real, say
from jaxcal.read.families import Classes, distribution_of
from jaxcal.read.scores import is_distribution, score
from jaxcal.typing import Divergence


def nodes(value: object, d: int, *, least: int = 1) -> int:
    """Return the number of nodes ``value``; for None max(10, 2 d + 2), enough to estimate the
    covariances of predictions in d dimensions from scores, and to check if scores are linear."""
    return max(10, 2 * d + 2) if value is None else integer(value, "n_nodes", least=least)


def null(value: object) -> None:
    """Raise TypeError, which names missing methods, unless the value is a null distribution."""
    lacks = [name for name in ("needs", "outcome", "least_p_value") if not hasattr(value, name)]
    if isinstance(value, type) or lacks:
        why = f", which has no {' and no '.join(lacks)}" if lacks else ""
        raise TypeError(f"null: wanted one such as jaxcal.nulls.Wild(500), got {say(value)}{why}")
    _module(value, "null")


def _module(value: object, name: str) -> None:
    """Raise TypeError if ``value`` is no pytree, which jitted functions would not accept."""
    if any(leaf is value for leaf in jax.tree.leaves(value)):
        raise TypeError(
            f"{name}: {type(value).__name__} is a plain class, which compiled programs cannot "
            f"take: derive it from equinox.Module, with its settings as fields"
        )


def devices(value: object, name: str = "mesh") -> Mesh | None:
    """Return the mesh of devices that share the work, or None; TypeError for anything else."""
    if value is not None and not isinstance(value, Mesh):
        raise TypeError(f"{name}: wanted None or a jax.sharding.Mesh, got {say(value)}")
    return value


def tolerance(value: object, default: float) -> float:
    """Return a relative tolerance in [0, 1), or the default if the value is None."""
    if value is not None and real(value, "tolerance") == 0:
        return 0.0
    return default if value is None else real(value, "tolerance", above=0, below=1)


def level(value: object) -> float:
    """Return the level of a test in (0, 1/2); larger numbers are probably confidence levels."""
    probability = real(value, "level")
    if not 0 < probability < 0.5:
        raise ValueError(
            f"level: wanted a probability of rejecting a calibrated model, above 0 and below 1/2, "
            f"got {probability:g}; limits and intervals have confidence 1 - level"
        )
    return probability


def instance(value: Any, kind: type, name: str, example: str = "") -> Any:
    """Return an instance of ``kind``, such as ``example``; TypeError for others and for classes."""
    if isinstance(value, type) or not isinstance(value, kind):
        wanted = f"one such as {example}" if example else f"a {kind.__name__}"
        raise TypeError(f"{name}: wanted {wanted}, got {say(value)}")
    return value


def names(value: object, d: int, of: str = "parameter") -> tuple[str, ...] | None:
    """Return ``value`` as a tuple of d strings, or None; ValueError unless it has d entries."""
    if value is None:
        return None
    if isinstance(value, str | type | Set) or not isinstance(value, Iterable):
        raise TypeError(f"names: wanted a list of {d} names, got {say(value)}")
    words = tuple(str(name) for name in value)
    if len(words) != d:
        raise ValueError(f"names: wanted {d}, one per {of}, got {len(words)}")
    return words


def divergence(value: object, name: str = "divergence") -> Any:
    """Return ``value``, an instance of a divergence between predictions, or raise TypeError."""
    instance(value, Divergence, name, "jaxcal.divergences.Fisher()")
    _module(value, name)
    if any(isinstance(leaf, bool) for leaf in jax.tree.leaves(value)):
        raise TypeError(
            f"{name}: needs_nodes of {type(value).__name__} is a field, and so a part of the data; "
            f"make it an attribute of the class, or eqx.field(static=True)"
        )
    return value


def of_jax(value: object, name: str = "predictions") -> None:
    """Raise TypeError for distributions of torch or SciPy, ValueError for masked parameters."""
    library = type(value).__module__.split(".")[0]
    if library in ("torch", "tensorflow_probability", "scipy") and not hasattr(value, "detach"):
        raise TypeError(
            f"{name}: {library}'s {type(value).__name__} is not written in JAX: use the "
            f"numpyro distribution of that name, jaxcal.Scores (its scores as arrays) or "
            f"jaxcal.Draws (draws from it)"
        )
    if is_distribution(value):  # accepts masked parameters, JAX does not
        for leaf in jax.tree.leaves(value):
            if isinstance(leaf, np.ma.MaskedArray):
                array(leaf, f"{name}: the parameters of {type(value).__name__}")


def targets(value: object, *, least: int = 2) -> Array:
    """Return targets [n] or [n, ...event] as floats; ValueError if n < ``least``."""
    ys = floats(value, "targets")
    if ys.ndim == 0 or ys.shape[0] < least:
        raise ValueError(
            f"targets: wanted at least {least} observation{'s' * (least > 1)}, shape [n] or "
            f"[n, d], got shape {ys.shape}"
        )
    if ys.size == 0:
        raise ValueError(f"targets: wanted at least one coordinate, got shape {ys.shape}")
    return ys


def predictions(value: Any, ys: Array, name: str = "predictions") -> Any:
    """Return validated predictions if they give scores at targets ``ys``, else raise an error."""
    of_jax(value, name)
    n = ys.shape[0]
    if isinstance(value, type):
        raise TypeError(f"{name}: got the class {value.__name__}; pass an instance of it")
    if isinstance(value, Scores):
        return _scores(value, ys)
    if isinstance(value, list | tuple) and any(map(is_distribution, value)):
        raise TypeError(
            f"{name}: got a {type(value).__name__} of {len(value)} distributions; give one with "
            f"batch shape [n], such as numpyro.distributions.Normal(means, deviations)"
        )
    if isinstance(value, (np.ndarray, jax.Array, list, tuple, int, float)):
        raise TypeError(
            f"{name}: got {say(value)}. Wrap arrays to say what they are: "
            f"jaxcal.Scores(array) for scores at the targets, jaxcal.Draws(array) for draws; class "
            f"probabilities go to skce_test; means and deviations to a numpyro distribution"
        )
    if is_distribution(value):
        _module(value, name)
        event = tuple(value.event_shape)
        if tuple(value.batch_shape) not in ((n,), ()) or event != ys.shape[1:]:
            raise ValueError(
                f"{name}: wanted a distribution with batch shape ({n},) and event shape "
                f"{ys.shape[1:]} to match targets of shape {ys.shape}, got batch shape "
                f"{tuple(value.batch_shape)} and event shape {event}"
                + ("; .to_event(1) makes the last batch axis an event" if not event else "")
            )
        return value
    if isinstance(value, Unnormalized):
        value = value.arrays_only()
    if isinstance(value, Unnormalized) and value.in_axes == 0:
        for path, leaf in jax.tree_util.tree_leaves_with_path(value.params):
            if jnp.ndim(leaf) == 0 or jnp.shape(leaf)[0] != n:
                raise ValueError(
                    f"{name}: params{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}; "
                    f"wanted a leading axis of n={n} predictions, or in_axes to say which "
                    f"parameters are shared"
                )
    if isinstance(value, Draws):
        raise TypeError(
            f"{name}: a Stein test needs scores, which draws do not give; pass a density, a "
            "distribution or Scores"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        if not isinstance(leaf, (jax.Array, np.ndarray, float, int)):
            raise TypeError(
                f"{name}: {type(value).__name__}{jax.tree_util.keystr(path)} is "
                f"{say(leaf)}; wanted a pytree of arrays such as an equinox.Module with a method "
                f"scores(ys)"
            )
    try:
        shape = jax.eval_shape(score, value, ys).shape
    except Exception as error:
        raise _of_the_density(value, ys, name, error) from error
    if shape != ys.shape:
        raise ValueError(f"{name}: scores have shape {shape}, targets {ys.shape}")
    return value


def _of_the_density(value: object, ys: Array, name: str, error: Exception) -> Exception:
    """Return the error to raise after the user's density or scores raised ``error``."""
    kind = ValueError if isinstance(error, ValueError) else TypeError
    said = str(error)
    if said.startswith("predictions: "):
        return kind(said.replace("predictions", name, 1))
    what = "log_density(params, y)" if isinstance(value, Unnormalized) else "its density"
    if "scalar-output" in said:
        return kind(f"{name}: {what} must return one number for one target ({said})")
    at = f"targets of shape {ys.shape[1:]}"
    return kind(f"{name}: {what} fails for {at} when JAX traces it: {said.partition(chr(10))[0]}")


def _scores(value: Scores, ys: Array) -> Scores:
    at_targets = floats(value.at_targets, "Scores.at_targets")
    if at_targets.shape != ys.shape:
        raise ValueError(
            f"Scores.at_targets: wanted the shape of the targets {ys.shape}, got {at_targets.shape}"
        )
    at_nodes = nodes = None
    if value.at_nodes is not None:
        at_nodes = floats(value.at_nodes, "Scores.at_nodes")
        n, event = ys.shape[0], ys.shape[1:]
        m = at_nodes.shape[1] if at_nodes.ndim == ys.ndim + 1 else 0
        if m < 1 or at_nodes.shape != (n, m, *event):
            raise ValueError(
                f"Scores.at_nodes: wanted shape ({n}, m{''.join(f', {e}' for e in event)}), one "
                f"row per observation and the scores at m base points, got {at_nodes.shape}"
            )
    if value.nodes is not None:
        nodes = floats(value.nodes, "Scores.nodes")
        m = None if at_nodes is None else at_nodes.shape[1]
        if nodes.shape[1:] != ys.shape[1:] or (m is not None and nodes.shape[0] != m):
            raise ValueError(
                f"Scores.nodes: wanted the m={m} base points of at_nodes, each of shape "
                f"{ys.shape[1:]}, got {nodes.shape}"
            )
    return Scores(at_targets, at_nodes, nodes)


def features(value: object, name: str) -> Array:
    """Return an array of numbers or booleans as floats; booleans become 0 and 1."""
    values = array(value, name)
    return floats(values.astype(np.int32) if values.dtype == bool else values, name)


def rows(value: object, n: int, name: str) -> Array:
    """Return n vectors, [n, q], from rows of any shape; [n] becomes [n, 1], booleans 0 and 1."""
    vectors = features(value, name)
    if vectors.size == 0 or vectors.shape[:1] != (n,):
        raise ValueError(f"{name}: wanted n={n} rows, one per target, got shape {vectors.shape}")
    return vectors.reshape(n, -1)


def width(value: Array, first: Array, name: str) -> None:
    """Raise ValueError unless each row of ``value`` [n, ...] has as many numbers as ``first``."""
    if (d := np.prod(value.shape[1:], dtype=int)) != first.size:
        raise ValueError(f"{name}: the first sample had {first.size} columns, the batch has {d}")


def probabilities(value: Any, name: str = "predictions", *, binary: bool = False) -> Array:
    """Return class probabilities [n, m]; ValueError unless rows are >= 0 with sum 1 up to rounding.

    Accepts a numpyro ``Categorical`` and, with ``binary``, n probabilities of class 1. Columns of a
    data frame named 0, 1, .. or "p0", "p1", .. are sorted. Under jit values are not checked.
    """
    if is_distribution(value) and hasattr(value, "enumerate_support"):
        closed = distribution_of(value)
        probs = closed.probabilities if isinstance(closed, Classes) else None
        if closed is None and not value.event_shape:  # a class of the user, such as a subclass
            probs = getattr(value, "probs", None)
        if probs is None or jnp.ndim(probs) != 2:
            raise ValueError(
                f"{name}: wanted class probabilities [n, m] or a Categorical with batch shape [n], "
                f"got {type(value).__name__} with batch shape {tuple(value.batch_shape)}"
            )
        value = probs
    values = floats(value, name)
    if values.ndim == 2 and (order := class_columns(value, name)):
        values = values[:, np.asarray(order)]
    if binary and values.ndim == 1 and values.shape[0] > 0:
        ones = unit(values, name)
        return jnp.stack([1 - ones, ones], axis=1)
    if values.ndim != 2 or values.shape[0] < 1 or values.shape[1] < 2:
        raise ValueError(
            f"{name}: wanted class probabilities of shape [n, m], one row per observation and one "
            f"column per class (two columns for two classes), got shape {values.shape}"
            + ("; draws [n, m, d] go as jaxcal.Draws(array)" if values.ndim == 3 else "")
        )
    if isinstance(values, Tracer):
        return values
    rows = np.asarray(values)
    _first_row(~np.all(np.isfinite(rows), axis=1), name, "holds NaN or infinite values")
    _first_row(
        np.any(rows < 0, axis=1),
        name,
        "holds a negative probability (are these logits? softmax them)",
    )
    sums = rows.sum(axis=1)
    if not np.any(np.abs(sums - 1) < 1e-3) and np.allclose(rows.sum(axis=0), 1, atol=1e-6):
        raise ValueError(
            f"{name}: the columns of shape {rows.shape} sum to 1, not the rows: transpose, so that "
            f"a row is an observation"
        )
    far = np.abs(sums - 1) > max(1e-6, 100 * rows.shape[1] * float(np.finfo(rows.dtype).eps))
    total = f"{sums[np.argmax(far)]:.7g}"
    _first_row(
        far,
        name,
        f"does not sum to 1 but to {total} (are these logits? softmax them; or divide each row)",
    )
    return values


def unit(value: object, name: str, wanted: str = "probabilities") -> Array:
    """Return numbers from 0 to 1 as an array [n], n >= 1; 1 plus a rounding error becomes 1.

    ValueError for other shapes and, outside of jit, for NaN and values out of range. ``wanted`` is
    the name of the values in the message.
    """
    values = floats(value, name)
    if values.ndim != 1 or values.shape[0] < 1:
        raise ValueError(
            f"{name}: wanted one number in [0, 1] per observation, shape [n] with n >= 1, got "
            f"shape {values.shape}"
            + "; see jaxcal.measures.confidences for class probabilities"
            * (values.ndim == 2)
        )
    rounding = 100 * float(jnp.finfo(values.dtype).eps)
    if not isinstance(values, Tracer):
        concrete = np.asarray(values)
        low, high = concrete.min(), concrete.max()
        if not (low >= 0 and high <= 1 + rounding):  # also for NaN
            bad = ~((concrete >= 0) & (concrete <= 1 + rounding))
            row = int(np.argmax(bad))
            raise ValueError(
                f"{name}: wanted {wanted} in [0, 1]; entry {row} is {concrete[row]}, and "
                f"{int(bad.sum())} of {concrete.size} are out of range or NaN"
            )
        if high <= 1:
            return values
    return jnp.where((values > 1) & (values <= 1 + rounding), 1, values)


def labels(value: object, n: int, m: int, name: str = "targets") -> Array:
    """Return classes 0, .., m - 1, shape [n], as int32, or raise an error."""
    classes = array(value, name)
    if classes.dtype == bool:
        classes = classes.astype(np.int32)
    if not jnp.issubdtype(classes.dtype, jnp.integer):
        raise TypeError(
            f"{name}: wanted integer classes 0, .., {m - 1}, got {classes.dtype}{_why(classes)}"
        )
    if classes.shape != (n,):
        raise ValueError(
            f"{name}: wanted one class per observation, shape ({n},), got {classes.shape}"
            + ("; take the argmax of one-hot rows" if classes.shape == (n, m) else "")
        )
    if not isinstance(classes, Tracer):
        concrete = np.asarray(classes)  # concrete even while other values are traced
        low, high = int(concrete.min()), int(concrete.max())
        if low == 1 and high == m:
            raise ValueError(f"{name}: classes 1, .., {m} were given; subtract 1, they start at 0")
        if low < 0 or high >= m:
            raise ValueError(f"{name}: wanted classes 0, .., {m - 1}, got {low} to {high}")
    return jnp.asarray(classes).astype(jnp.int32)


def _why(classes: Any) -> str:
    if isinstance(classes, Tracer) or not jnp.issubdtype(classes.dtype, jnp.floating):
        return ""
    lost = int(np.sum(~np.isfinite(np.asarray(classes, float))))
    return f", of which {lost} are NaN or infinite" if lost else "; convert with .astype(int)"


def _first_row(bad: np.ndarray, name: str, what: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"{name}: row {row} {what}; {int(bad.sum())} of {bad.size} rows fail this")
