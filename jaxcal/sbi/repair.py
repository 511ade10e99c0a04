"""`repair_posterior`: correct the errors of a posterior by a map fitted to simulated pairs."""

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.read import checks, convert
from jaxcal.repairing import repair as repairing
from jaxcal.results import rows_in_one_order
from jaxcal.sbi.adapters import as_posterior
from jaxcal.sbi.pairs import PairOptions, inputs_of, score_pairs, summarized
from jaxcal.sbi.posteriors import (
    ArrayPosterior,
    Densities,
    DistributionPosterior,
    Sampler,
    is_tensor,
)
from jaxcal.sbi.repaired import Repaired, RepairedPosterior, RepairedSampler, like_inputs
from jaxcal.typing import ArrayLike, KeyLike, Observations, PosteriorLike


@rows_in_one_order
def repair_posterior(
    key: KeyLike,
    posterior: PosteriorLike,
    thetas: ArrayLike,
    xs: Observations,
    *,
    summarize: Callable[[Any], ArrayLike] | None = None,
    folds: int = 5,
    level: float = 0.05,
    **options: Unpack[PairOptions],
) -> RepairedPosterior:
    r"""Repair a posterior by simulated pairs on which it was not trained, and certify the gain.

    The map T of `jaxcal.repair`, with Jacobian matrix B, acts on free parameters u = g(theta), e.g.
    log(theta - low) for a lower bound (`Space`). For each x, the posterior p becomes p',

    .. math:: \log p'(\theta) = \log p(\theta_0) - \log |B| + \log |g'(\theta)|
        - \log |g'(\theta_0)|, \quad \theta_0 = g^{-1}(T^{-1}(g(\theta))),

    so p' has the normalizing constant of p, and no mass leaves the bounds.

    Args:
        key: Random key: typed, legacy or an integer.
        posterior: Anything that `score_pairs` takes and that has log densities for any x: NPE, NLE
            and NRE of sbi, functions, networks and flows of JAX and torch. TypeError if it has no
            log densities, solves an ODE for each one, or has log densities for one x only.
        thetas: [n, d] parameters from the prior.
        xs: [n, ..] observations simulated from them, or a dict of such arrays, whose numbers are
            inputs of the map in the order of the sorted names. The certificate is valid only if the
            posterior was not trained on these pairs.
        summarize: Function of observations [n, ..] that returns the inputs of the map, [n, q]; if
            xs are tensors, it gets tensors of new observations, too. By default it returns xs, or
            the network's embedding (if any) for over 100 numbers per x.
        folds: As in `jaxcal.repair`.
        level: As in `jaxcal.repair`.
        **options: Those of `score_pairs`: ``prior``, ``bounds``, ``names`` and others.

    Returns:
        `RepairedPosterior`, with ``log_prob(theta, x)``, ``sample(shape, x)`` and ``certificate``.
        Its methods return tensors if they are given tensors.

    Cost: that of `score_pairs` and `jaxcal.repair`.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro.distributions as dist
        >>> from jaxcal import sbi
        >>> prior = dist.Normal(jnp.zeros(1), 1.0).to_event(1)
        >>> thetas, noise = jax.random.normal(jax.random.key(0), (2, 200, 1))
        >>> def log_prob(theta, x):  # half as wide as the exact posterior, N(x / 2, 1 / 2)
        ...     return -4 * ((theta - x / 2) ** 2).sum()
        >>> repaired = sbi.repair_posterior(1, log_prob, thetas, thetas + noise, prior=prior)
        >>> bool(repaired.certificate.low > 0)
        True
        >>> repaired.log_prob(jnp.zeros((3, 1)), jnp.zeros(1)).shape
        (3,)
    """
    key = convert.key(key)
    if summarize is not None:
        convert.function(summarize, "summarize", "observations, as new ones are repaired too")
    if "summaries" in options:
        raise TypeError(
            "summaries: pass summarize=, a function, as new observations are repaired too"
        )
    scorer = as_posterior(posterior, thetas, options.get("prior"))
    if isinstance(scorer, ArrayPosterior | DistributionPosterior):
        raise TypeError(
            "posterior: arrays and batches of distributions say nothing of other observations: "
            "pass a function, network or flow, or use jaxcal.repair on these predictions"
        )
    keys = jax.random.split(key)
    if summarize is not None:
        n = len(jnp.atleast_1d(convert.floats(thetas, "thetas")))
        options["summaries"] = checks.rows(summarize(xs), n, "summarize(xs)")
    pairs = score_pairs(keys[0], scorer, thetas, xs, **options)
    if pairs.predictions is None or not isinstance(scorer, Densities):
        raise TypeError(
            "posterior: a repair needs thousands of log densities, and this posterior has scores "
            "alone or solves an ODE for each: train NPE, NLE or NRE"
        )
    judged = {"names": pairs.names, "folds": folds, "level": level}
    repair = repairing.repair(
        keys[1], pairs.predictions, pairs.thetas, inputs=inputs_of(pairs), **judged
    )
    assert isinstance(repair, repairing.Repair)
    kind = RepairedSampler if isinstance(scorer, Sampler) else Repaired
    tensors = [leaf[:0] for leaf in jax.tree.leaves(xs) if is_tensor(leaf)]
    features = partial(_features, scorer, summarize, tensors, pairs.thetas.dtype)
    shapes = jax.tree.map(lambda leaf: tuple(jnp.shape(leaf))[1:], pairs.xs)
    repaired = kind(scorer, pairs.space, repair, features)
    x_names = tuple(convert.column_names(xs))
    return RepairedPosterior(posterior, repaired, shapes, pairs.notes, x_names)


def _features(scorer: Any, summarize: Any, tensors: Any, dtype: Any, xs: Any) -> Array:
    """Return the inputs [n, q] of the map for new observations xs; ``summarize`` takes tensors like
    the first of ``tensors``, or arrays if there is none."""
    n, summaries = len(jax.tree.leaves(xs)[0]), None
    if summarize is not None:
        observed = jax.tree.map(partial(like_inputs, tensors), xs)
        summaries = checks.features(summarize(observed), "summarize(xs)")
    return summarized(scorer, xs, summaries, n)[0].astype(dtype)
