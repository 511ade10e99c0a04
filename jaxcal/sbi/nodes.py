"""Draws of the prior: nodes at which posteriors are compared, and points to fit jumps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.read import checks, convert
from jaxcal.read.sampling import sample
from jaxcal.sbi.numpyro_posterior import NumpyroPosterior
from jaxcal.sbi.space import Space
from jaxcal.sbi.suspicions import is_of_torch
from jaxcal.typing import Key

PILOTS = 128  # draws of the prior from which the jump proposal is fitted


def nodes_of(key: Key, prior: Any, scorer: Any, m: int, values: Array) -> Array | None:
    """Return m draws of the prior, [m, d], or None without a prior."""
    d, dtype = values.shape[1], values.dtype
    if isinstance(scorer, NumpyroPosterior) and prior is None:
        return scorer.draw_nodes(key, m).astype(dtype)
    if prior is None:
        return None
    if hasattr(prior, "sample") and not convert.brought(prior):
        if is_of_torch(prior):
            drawn = _draw_torch(key, prior, m)
        else:
            drawn = sample(key, prior, (m,), "prior")
    elif callable(prior):
        prior = checks.function(prior, "prior", "a key and the number of draws")
        try:
            drawn = prior(key, m)
        except TypeError as error:
            raise TypeError(f"prior: prior(key, m) fails: {error}") from error
    else:
        drawn = checks.floats(prior, "prior")
        if drawn.ndim == 0 or len(drawn) < 1:
            got = "none" if drawn.ndim else "a number"
            raise ValueError(f"prior: wanted a distribution or its draws [m, {d}], got {got}")
        drawn = drawn[:m]
    nodes = checks.floats(drawn, "prior").astype(dtype)
    nodes = nodes[:, None] if nodes.ndim == 1 else nodes
    if nodes.ndim != 2 or nodes.shape[1] != d:
        raise ValueError(
            f"prior: wanted draws of shape [m, {d}], as thetas have {d} parameters, got "
            f"{nodes.shape}"
        )
    return nodes


def prior_draws_of(
    key: Key, prior: Any, scorer: Any, values: Array, space: Space
) -> Float[Array, "k d"] | None:
    """Return draws of the prior as free parameters, none on a bound; None if there are too few."""
    drawn = nodes_of(jax.random.fold_in(key, 4), prior, scorer, PILOTS, values)
    if drawn is None:
        return None
    free = np.asarray(space.free(drawn))
    finite = free[np.all(np.isfinite(free), axis=1)]
    return jnp.asarray(finite) if len(finite) >= finite.shape[1] + 2 else None


def _draw_torch(key: Key, prior: Any, m: int) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    with torch.random.fork_rng():
        torch.manual_seed(int(jax.random.bits(key, dtype=jnp.uint32)))
        return prior.sample((m,))
