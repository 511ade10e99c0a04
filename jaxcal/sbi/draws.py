"""Draws of posteriors in the form that other libraries keep them, as one array."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal import checks
from jaxcal.typing import ArrayLike


def as_draws(draws: ArrayLike, names: Sequence[str] | None = None) -> Float[Array, "n m d"]:
    """Draws of n posteriors as one array, for ranks and coverage.

    Chains of ArviZ are thinned to the effective size of their worst parameter, since ranks want
    independent draws, and all posteriors to the least number of draws among them.

    Args:
        draws: One of these.

            - An array or tensor [n, m, d], or [n, m] for one parameter. sbi's ``sample_batched``
              gives [m, n, d]: transpose the first two axes.
            - A dict of arrays [n, m] or [n, m, k], as BayesFlow samples.
            - A list of n ``InferenceData`` of ArviZ, one for each observation.
        names: Variables of a dict or of ArviZ to take, in this order; all by default.

    Returns:
        Draws [n, m, d]; the entries of variables that are arrays lie side by side.

    Raises:
        ValueError: shapes disagree, or chains hold fewer than two independent draws.
        TypeError: it is none of these.

    Example:
        >>> import jax
        >>> from jaxcal import sbi
        >>> rates, slopes = jax.random.normal(jax.random.key(0), (2, 50, 9))
        >>> sbi.as_draws({"rate": rates, "slope": slopes}).shape
        (50, 9, 2)
    """
    if hasattr(draws, "posterior"):
        raise TypeError(
            "draws: got one InferenceData, which is about one observation: pass a list of them, "
            "one for each"
        )
    if isinstance(draws, Mapping):
        return _side_by_side(draws, names)
    if isinstance(draws, list | tuple) and draws and all(hasattr(d, "posterior") for d in draws):
        each = [_independent(data, names) for data in draws]
        m = min(len(one) for one in each)
        if m < 2:
            raise ValueError("draws: some chains have an effective size below 2: run them longer")
        return jnp.asarray(np.stack([one[_spaced(len(one), m)] for one in each]))
    array = checks.floats(draws, "draws")
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(
            f"draws: wanted m draws of each of n posteriors, shape [n, m, d], got {array.shape}"
        )
    return array


def paired(
    draws: ArrayLike, thetas: ArrayLike, names: Sequence[str] | None
) -> tuple[Float[Array, "n m d"], Array, Sequence[str] | None]:
    """Draws and parameters with the same columns, and the names of these where they are known.

    Columns are aligned by name: by those of ``thetas`` where it is a dict, else by ``names``.
    """
    variables = _variables(draws)
    if isinstance(thetas, Mapping):
        if variables is None:
            raise ValueError("thetas: got a dict, but the draws have no names: pass both as arrays")
        order = _same(variables, [str(name) for name in thetas])
        parts = [checks.floats(thetas[name], f"thetas[{name!r}]") for name in thetas]
        values = jnp.concatenate([part.reshape(part.shape[0], -1) for part in parts], axis=1)
        return as_draws(draws, order), values, names or _columns(order, parts)
    values = checks.floats(thetas, "thetas")
    values = values[:, None] if values.ndim == 1 else values
    if variables is None:
        return as_draws(draws), values, names
    if len(variables) == 1:
        return as_draws(draws), values, names or _columns(variables, [values])
    if names is None:
        raise ValueError(
            f"thetas: the draws have the names {', '.join(variables)}, and nothing says which "
            f"column of thetas is which: pass thetas as a dict with these names, or names= in the "
            f"order of its columns"
        )
    order = _same(variables, names)
    return as_draws(draws, order), values, order


def _variables(draws: ArrayLike) -> list[str] | None:
    """Names of the variables that draws come with; None for an array."""
    if isinstance(draws, Mapping):
        return [str(name) for name in draws]
    if isinstance(draws, list | tuple) and draws and all(hasattr(d, "posterior") for d in draws):
        return [str(name) for name in draws[0].posterior.data_vars]
    return None


def _same(variables: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names, which must be those of the variables in some order."""
    if sorted(names) != sorted(variables):
        raise ValueError(
            f"names: the draws hold {', '.join(variables)}, the parameters are called "
            f"{', '.join(names)}: use the same names for both"
        )
    return list(names)


def _columns(names: Sequence[str], parts: Sequence[Array]) -> list[str]:
    """A name for each column of the parts [n, ..]; those of one part are counted from 0."""
    sizes = [int(np.prod(part.shape[1:], dtype=int)) for part in parts]
    return [
        name if size == 1 else f"{name}[{i}]"
        for name, size in zip(names, sizes, strict=True)
        for i in range(size)
    ]


def _side_by_side(draws: Mapping[str, Any], names: Sequence[str] | None) -> Array:
    parts = []
    for name in _chosen(draws, names):
        part = checks.floats(draws[name], f"draws[{name!r}]")
        if part.ndim < 2 or (parts and part.shape[:2] != parts[0].shape[:2]):
            raise ValueError(
                f"draws[{name!r}]: wanted m draws of each of n posteriors, shape [n, m, ..], the "
                f"same n and m for all, got {part.shape}"
            )
        parts.append(part.reshape(*part.shape[:2], -1))
    return jnp.concatenate(parts, axis=2)


def _independent(data: PyTree, names: Sequence[str] | None) -> np.ndarray:
    """About independent draws [m, d] of one posterior, by the effective size of its chains."""
    import arviz  # pyright: ignore[reportMissingImports]

    posterior = data.posterior
    parts = []
    for name in _chosen(posterior.data_vars, names):
        values = np.asarray(posterior[name].transpose("chain", "draw", ...).values)
        parts.append(values.reshape(*values.shape[:2], -1))
    chains = np.concatenate(parts, axis=2)  # [chain, draw, d]
    sizes = [float(arviz.ess(chains[:, :, k])) for k in range(chains.shape[2])]
    whole = chains.reshape(-1, chains.shape[2])
    size = min(sizes) if np.all(np.isfinite(sizes)) else 0.0
    return whole[_spaced(len(whole), min(len(whole), int(size)))]


def _spaced(n: int, m: int) -> np.ndarray:
    """m of n positions, evenly spaced."""
    return np.linspace(0, n - 1, m).round().astype(int)


def _chosen(variables: Any, names: Sequence[str] | None) -> list[str]:
    present = [str(name) for name in variables]
    chosen = present if names is None else list(names)
    missing = [name for name in chosen if name not in present]
    if missing or not chosen:
        raise ValueError(
            f"names: no variable {missing[0] if missing else ''!r} among {', '.join(present)}"
        )
    return chosen
