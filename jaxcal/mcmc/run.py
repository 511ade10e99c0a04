"""`mcmc_draws`: MCMC of n predictions with c chains each, vectorized in one program."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.mcmc.results import McmcDraws, effective_size, split_rhat
from jaxcal.mcmc.samplers import NUTS, Potential
from jaxcal.numerics import largest, smallest
from jaxcal.read import Unnormalized, checks, convert
from jaxcal.read.sampling import in_type_of
from jaxcal.read.scores import (
    is_distribution,
    log_densities_and_gradients,
    log_densities_at,
    no_log_densities,
    on_whole_space,
)
from jaxcal.results import recorded
from jaxcal.typing import Key, KeyLike, Predictions

PATH = 500  # states of each chain for R-hat, evenly spaced over the steps after warm-up
LENGTH = 2000  # default steps of each chain after warm-up, enough for R-hat to tell 1.01 from 1
LANES = "predictions"  # axis along which all predictions take a step together


@runtime_checkable
class Sampler(Protocol):
    """Protocol of samplers: ``kernel(potential)`` returns numpyro's kernel for -log density."""

    def kernel(self, potential: Potential, /) -> PyTree: ...


@recorded
def mcmc_draws(
    key: KeyLike,
    predictions: Predictions,
    *,
    n_samples: int = 20,
    sampler: Sampler | None = None,
    n_chains: int = 4,
    n_warmup: int = 500,
    thin: int | None = None,
    event_shape: int | tuple[int, ...] | None = None,
    start: PyTree = None,
) -> McmcDraws:
    """Return MCMC draws from each of n predictions, whose densities may be unnormalized.

    Each chain makes ``n_warmup`` steps, during which an adapting sampler tunes itself, then keeps
    one draw every ``thin`` steps. A test with these draws is valid if chains have converged, so
    that each draw follows its prediction; draws of one prediction may be dependent.
    ``result.warnings()`` reports chains that have not converged. A test of convergence takes one
    draw of each prediction as the target, ``result.draws.samples[:, 0]``, as in the example.
    The setting of Glaser et al. (2023), Figure 2, with s steps per chain is ``n_samples=2,
    n_chains=2, thin=1, n_warmup=s - 1, sampler=MALA(0.1, adapt=False)``.

    Chains are computed in the default float type; draws have the float type of the predictions.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: An `Unnormalized` (with ``event_shape``), or a numpyro distribution with batch
            shape [n] on the whole space.
        n_samples: Number of draws from each prediction by all chains, a multiple of ``n_chains``.
        sampler: `MALA`, `HMC` or `NUTS` of `jaxcal.mcmc`; by default ``NUTS()``.
        n_chains: Number of chains per prediction.
        n_warmup: Number of steps of warm-up.
        thin: Steps per draw. By default at least 10, and enough for 2,000 steps of each chain after
            warm-up. R-hat is then below 1.01 for Gaussians and for two modes up to four standard
            deviations apart. The first steps after tuning are biased, so ``thin`` must not be
            small (`experiments/kccsd_mcmc`).
        event_shape: Shape of one target, required for an `Unnormalized`.
        start: Start of the chains: a distribution over targets, or an array [n_chains, n, ...]. By
            default standard normal draws; for targets far from 0 pass a suitable distribution.

    Returns:
        `McmcDraws`.

    Cost: n_chains (n_warmup + thin n_samples / n_chains) evaluations of all n densities and scores,
    times the leapfrog steps per step; memory for n (n_samples + 500 n_chains) targets.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> def log_density(center, y):
        ...     return -((y - center) ** 2) / 2
        >>> predictions = jaxcal.Unnormalized(log_density, jnp.arange(3.0))
        >>> options = {"event_shape": (), "n_samples": 8, "n_warmup": 50, "thin": 10}
        >>> result = jaxcal.mcmc_draws(0, predictions, **options)
        >>> result.samples.shape
        (3, 8, 1)
        >>> jaxcal.kccsd_test(1, predictions, result.draws.samples[:, 0]).p_value.shape
        ()
    """
    key = convert.key(key)
    if isinstance(predictions, Unnormalized):
        predictions = predictions.arrays_only()
    n_samples = convert.integer(n_samples, "n_samples")
    n_chains = convert.integer(n_chains, "n_chains")
    n_warmup = convert.integer(n_warmup, "n_warmup", least=0)
    if n_samples % n_chains:
        raise ValueError(
            f"n_samples: wanted as many from each of n_chains={n_chains} chains, got {n_samples}"
        )
    kept = n_samples // n_chains
    thin = max(10, -(-LENGTH // kept)) if thin is None else convert.integer(thin, "thin")
    sampler = NUTS() if sampler is None else sampler
    checks.instance(sampler, Sampler, "sampler", "jaxcal.mcmc.MALA(0.1)")
    n, event = _layout(predictions, event_shape)
    dtype = jnp.result_type(float)
    shape = jax.eval_shape(log_densities_at, predictions, jnp.zeros((n, *event), dtype)).shape
    if shape != (n,):
        raise ValueError(
            f"predictions: log_density(params, y) must return one number for one target of shape "
            f"{event}, got shape {shape[1:]}"
        )
    return _run(
        key,
        predictions,
        sampler,
        _checked_start(start, n_chains, n, event),
        n=n,
        event=event,
        chains=n_chains,
        kept=kept,
        warmup=n_warmup,
        thin=thin,
    )


def _layout(
    predictions: Any, event_shape: int | tuple[int, ...] | None
) -> tuple[int, tuple[int, ...]]:
    """Return n and the shape of one target; TypeError or ValueError for unsuitable predictions."""
    checks.of_jax(predictions)
    if event_shape is not None:
        sides = event_shape if isinstance(event_shape, tuple | list) else (event_shape,)
        event_shape = tuple(convert.integer(side, "event_shape") for side in sides)
    if is_distribution(predictions):
        batch, event = tuple(predictions.batch_shape), tuple(predictions.event_shape)
        if len(batch) != 1:
            raise ValueError(
                f"predictions: wanted a distribution with batch shape [n], got {batch}"
                + ("; .to_event(1) makes the last batch axis an event" if len(batch) > 1 else "")
            )
        if event_shape is not None and tuple(event_shape) != event:
            raise ValueError(f"event_shape: got {event_shape} for targets of shape {event}")
        if not on_whole_space(predictions):
            raise ValueError(
                f"predictions: {type(predictions).__name__} lives on {predictions.support}, and "
                f"MCMC here walks all of space; numpyro distributions can be sampled directly, or "
                f"transform the target to the whole line first"
            )
        return batch[0], event
    if not isinstance(predictions, Unnormalized):
        raise no_log_densities(predictions, "MCMC")
    if event_shape is None:
        raise ValueError(
            "event_shape: an unnormalized density does not say what its targets look like; pass "
            "event_shape=d for vectors of length d, or () for numbers"
        )
    count = jax.vmap(lambda params: 0.0, in_axes=(predictions.in_axes,))
    return jax.eval_shape(count, predictions.params).shape[0], tuple(event_shape)


@partial(jax.jit, static_argnames=("n", "event", "chains", "kept", "warmup", "thin"))
def _run(
    key: Key,
    predictions: Predictions,
    sampler: Sampler,
    start: PyTree,
    *,
    n: int,
    event: tuple[int, ...],
    chains: int,
    kept: int,
    warmup: int,
    thin: int,
) -> McmcDraws:
    start_key, chain_key = jax.random.split(key)
    begin = _begin(start_key, start, (chains, n, *event))
    kernel = sampler.kernel(_potential(predictions))
    keys = jax.random.split(chain_key, (chains, n))
    steps = warmup + thin * kept
    begin_looking = min(warmup, steps - steps // 2)
    late = steps - begin_looking
    stride = -(-late // PATH)
    looked = late // stride

    def everywhere(function: Callable[..., PyTree]) -> PyTree:
        return jax.vmap(jax.vmap(function, axis_name=LANES))

    def step(t: Array, carry: PyTree) -> PyTree:
        state, draws, path, accepted, diverged = carry
        state = everywhere(lambda state: kernel.sample(state, (), {}))(state)
        # each slot keeps the last of ``thin`` steps; warm-up steps in the first are overwritten
        draws = draws.at[jnp.maximum(t - warmup, 0) // thin].set(state.z)
        # all earlier steps are written to the first slot and overwritten by later ones
        place = jnp.maximum(t - (steps - looked * stride), 0) // stride
        return (
            state,
            draws,
            path.at[place].set(state.z),
            accepted + jnp.where(t >= begin_looking, state.accept_prob, 0),
            diverged + ((t >= warmup) & state.diverging).astype(diverged.dtype),
        )

    state = everywhere(lambda key, z: kernel.init(key, warmup, z, (), {}))(keys, begin)
    carry = (
        state,
        jnp.zeros((kept, *begin.shape), begin.dtype),
        jnp.zeros((looked, *begin.shape), begin.dtype),
        jnp.zeros((chains, n), begin.dtype),
        jnp.zeros((chains, n), jnp.int32),
    )
    state, draws, path, accepted, diverged = jax.lax.fori_loop(0, steps, step, carry)
    rhat, size = split_rhat(path), effective_size(draws)
    samples = jnp.moveaxis(draws.reshape(kept * chains, n, -1), 0, 1)
    return McmcDraws(
        samples=in_type_of(predictions, samples),
        rhat=largest(rhat.reshape(n, -1), axis=1),
        acceptance=jnp.mean(accepted, axis=0) / late,
        ess=smallest(size.reshape(n, -1), axis=1),
        divergences=jnp.sum(diverged, axis=0),
        step=jnp.mean(state.adapt_state.step_size, axis=0) / getattr(sampler, "leapfrog_length", 1),
        sampler=type(sampler).__name__,
        chains=chains,
        warmup=warmup,
        steps=steps,
        event_shape=event,
    )


def _potential(predictions: Predictions) -> PyTree:
    """Return a function from a target to minus the log density of one prediction.

    Call it under ``vmap`` with axis name ``LANES`` on n targets, one for each prediction. It then
    computes the densities and scores of all n predictions at once.
    """

    @jax.custom_vjp
    def potential(y: Array) -> Float[Array, ""]:
        return -log_densities_at(predictions, jax.lax.all_gather(y, LANES))[
            jax.lax.axis_index(LANES)
        ]

    def forward(y: Array) -> tuple[Array, Array]:
        ys, lane = jax.lax.all_gather(y, LANES), jax.lax.axis_index(LANES)
        logs, gradients = log_densities_and_gradients(predictions, ys)
        return -logs[lane], gradients[lane]

    def backward(score_here: Array, cotangent: Array) -> tuple[Array]:
        return (-cotangent * score_here,)

    potential.defvjp(forward, backward)
    return potential


def _checked_start(start: PyTree, chains: int, n: int, event: tuple[int, ...]) -> PyTree:
    if start is None:
        return None
    if is_distribution(start):
        batch, shape = tuple(start.batch_shape), tuple(start.event_shape)
        if shape != event or batch not in ((), (n,)):
            raise ValueError(
                f"start: wanted a distribution with batch shape ({n},) or () and event shape "
                f"{event}, got batch shape {batch} and event shape {shape}"
            )
        return start
    start = convert.floats(start, "start")
    if start.shape != (chains, n, *event):
        raise ValueError(
            f"start: wanted one point a chain and prediction, shape {(chains, n, *event)}, or a "
            f"distribution over targets of shape {event}, got shape {start.shape}"
        )
    return start


def _begin(key: Key, start: PyTree, shape: tuple[int, ...]) -> Array:
    dtype = jnp.result_type(float)
    if start is None:
        return jax.random.normal(key, shape, dtype)
    if is_distribution(start):
        lead = shape[: len(shape) - len(start.event_shape) - len(start.batch_shape)]
        return start.sample(key, lead).astype(dtype)
    return start.astype(dtype)
