"""Whatever form a user has a posterior in, as something with scores."""

import inspect
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.models import Scores
from jaxcal.sbi.posteriors import (
    ArrayPosterior,
    Densities,
    DistributionPosterior,
    JaxPosterior,
    Posterior,
    is_tensor,
)
from jaxcal.sbi.suspicions import is_of_torch
from jaxcal.sbi.torch_posterior import TorchPosterior
from jaxcal.scores import is_distribution
from jaxcal.typing import Key, Observations, PosteriorLike, PriorLike


def as_posterior(posterior: Any, thetas: Any = None, prior: Any = None) -> Posterior:
    """The posterior in whatever form the user has it, as a `Posterior`: something with scores.

    Args:
        posterior: As in `jaxcal.sbi.score_pairs`.
        thetas: The parameters as the user has them: tensors mean that functions are torch's.
        prior: A prior of torch, for estimators that lack one.

    Returns:
        The posterior itself where it has scores, or an adapter.

    Raises:
        TypeError: there is no way to scores.
    """
    if isinstance(posterior, Scores):
        return ArrayPosterior(posterior)
    if isinstance(posterior, type):
        raise TypeError(f"posterior: got the class {posterior.__name__}; pass an instance of it")
    if isinstance(posterior, (JaxPosterior, ArrayPosterior)) or hasattr(posterior, "scored"):
        return posterior
    if is_tensor(posterior) or isinstance(posterior, (np.ndarray, jax.Array, list, tuple)):
        raise TypeError(
            "posterior: got an array: wrap scores as jaxcal.Scores(at_targets, at_nodes, nodes) to "
            "say what they are"
        )
    attributes = ("potential_fn", "posterior_estimator", "set_x", "condition_shape")
    sampled = any(hasattr(posterior, name) for name in attributes)
    if is_of_torch(posterior) or sampled or (callable(posterior) and is_tensor(thetas)):
        prior_of_torch = prior if is_of_torch(prior) else None
        return TorchPosterior(
            posterior, prior=prior_of_torch, like=thetas if is_tensor(thetas) else None
        )
    if is_distribution(posterior):
        return DistributionPosterior(posterior)
    if callable(posterior) and not hasattr(posterior, "log_prob") and _needs_one(posterior):
        return ConditionalPosterior(posterior)
    if callable(posterior) or hasattr(posterior, "log_prob"):
        return JaxPosterior(posterior)
    raise TypeError(
        f"posterior: cannot get scores from {type(posterior).__name__}: pass log_prob(theta, x), "
        f"an sbi posterior or potential, a NumpyroPosterior, or jaxcal.Scores"
    )


def predictions(
    posterior: PosteriorLike, xs: Observations, *, prior: PriorLike | None = None
) -> Any:
    """The posteriors given n observations, as the rest of the library takes predictions.

    They are over the parameters as they are; `score_pairs` brings them to the whole space. Those of
    torch compute their densities by calling back to torch: `jaxcal.coverage.coverage` counts with
    them and your own draws, and `jaxcal.candidates.exchangeability_test` needs no draws.

    Args:
        posterior: As in `jaxcal.sbi.score_pairs`.
        xs: [n, ..] observations; a tensor says that a function is torch's.
        prior: A prior of torch, for estimators that lack one.

    Returns:
        `jaxcal.Unnormalized`, or a distribution, with batch shape [n].

    Raises:
        TypeError: the posterior has no log densities.

    Example:
        >>> import jax
        >>> from jaxcal import coverage, sbi
        >>> xs, thetas, draws = jax.random.normal(jax.random.key(0), (3, 100, 9, 2))
        >>> def log_prob(theta, x):
        ...     return -(theta**2).sum() / 2
        >>> posteriors = sbi.predictions(log_prob, xs[:, 0])
        >>> coverage.coverage(posteriors, thetas[:, 0], draws).ranks.shape
        (100,)
    """
    scorer: Posterior = as_posterior(posterior, xs, prior)
    if isinstance(scorer, TorchPosterior):
        return scorer.at(xs)
    if not isinstance(scorer, Densities):
        raise TypeError(
            f"posterior: {type(posterior).__name__} has no log densities: pass log_prob(theta, x) "
            f"or what has one"
        )
    return scorer.predictions(jax.tree.map(lambda leaf: checks.numbers(leaf, "xs"), xs))


class ConditionalPosterior:
    """A function from all n observations to a numpyro distribution with batch shape [n]."""

    def __init__(self, distribution_of: Any):
        self.distribution_of = distribution_of

    def scored(self, thetas: Array, xs: Observations, nodes: Array | None) -> Scores:
        return self._at(xs).scored(thetas, xs, nodes)

    def predictions(self, xs: Observations) -> Any:
        """The distributions given xs."""
        return self._at(xs).predictions(xs)

    def sample(self, key: Key, xs: Observations, m: int) -> Float[Array, "n m d"]:
        """m draws of each."""
        return self._at(xs).sample(key, xs, m)

    def _at(self, xs: Observations) -> DistributionPosterior:
        distribution = self.distribution_of(xs)
        if not is_distribution(distribution):
            raise TypeError(
                f"posterior: wanted log_prob(theta, x), or a function xs -> distribution with "
                f"batch shape [n]; its function of one argument returned "
                f"{checks.say(distribution)}"
            )
        return DistributionPosterior(distribution)


def _needs_one(function: Any) -> bool:
    """Whether a function needs one argument and takes no second."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len(parameters) == 1 and all(p.kind in positional for p in parameters)
