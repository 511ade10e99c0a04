"""Several models' predictions as one, their mixture, and its squared error."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.read import checks, convert
from jaxcal.typing import ArrayLike, PredictionsLike, Scalar

WRAPPERS = ("Independent", "ExpandedDistribution")
CLASSES = {"CategoricalProbs", "CategoricalLogits", "BernoulliProbs", "BernoulliLogits"}


def ensemble(members: Sequence[PredictionsLike], weights: ArrayLike | None = None) -> Any:
    """The predictions of k models as one mixture an observation.

    Members are numpyro distributions of one batch shape [n] and event shape: those of one family
    become ``MixtureSameFamily``, for which kernel means have closed forms, others
    ``MixtureGeneral``; categorical predictions and class probabilities [n, m] are averaged.
    ``weights`` [k] of sum 1, equal by default.
    """
    if not isinstance(members, Iterable):
        raise TypeError(f"members: wanted a list of predictions, got {convert.say(members)}")
    each: list[Any] = list(members)
    if not each:
        raise ValueError("members: wanted at least one")
    w = _weights(weights, len(each))
    if not all(hasattr(member, "batch_shape") for member in each):
        arrays = [checks.probabilities(member, f"members[{k}]") for k, member in enumerate(each)]
        _same([array.shape for array in arrays], "shape")
        return jnp.tensordot(w.astype(arrays[0].dtype), jnp.stack(arrays), axes=1)
    for k, member in enumerate(each):
        checks.of_jax(member, f"members[{k}]")
    _same([(tuple(m.batch_shape), tuple(m.event_shape)) for m in each], "batch and event shape")
    if len(each[0].batch_shape) != 1:
        raise ValueError(
            f"members: wanted distributions with batch shape [n], got {each[0].batch_shape}"
        )
    import numpyro.distributions as dist

    kinds = {_kind(member) for member in each}
    if kinds <= CLASSES:
        family = dist.BernoulliProbs if kinds & {"BernoulliProbs", "BernoulliLogits"} else None
        if family is not None and not all(kind.startswith("Bernoulli") for kind in kinds):
            raise TypeError(f"members: cannot average {sorted(kinds)}")
        probabilities = jnp.tensordot(w, jnp.stack([_probs(m) for m in each]), axes=1)
        return (family or dist.CategoricalProbs)(probabilities)
    n = each[0].batch_shape[0]
    mixing = dist.Categorical(jnp.broadcast_to(w, (n, len(each))))
    if len(kinds) == 1 and not any("Mixture" in kind for kind in kinds):
        return dist.MixtureSameFamily(mixing, _stack(each))
    return dist.MixtureGeneral(mixing, each)


def mse(predictions: PredictionsLike, targets: ArrayLike) -> Scalar:
    """Mean squared distance of targets [n] or [n, d] to the predicted means, summed over d."""
    checks.of_jax(predictions)
    if not hasattr(predictions, "mean") or not hasattr(predictions, "batch_shape"):
        raise TypeError(
            f"predictions: wanted a distribution with a mean, got {type(predictions).__name__}"
        )
    ys, distribution = convert.numbers(targets, "targets"), cast(Any, predictions)
    return jnp.sum((ys - jnp.broadcast_to(distribution.mean, ys.shape)) ** 2) / ys.shape[0]


def _stack(members: list[Any]) -> Any:
    """One distribution of batch shape [n, k, ..] from k of batch shape [n, ..]."""
    first = members[0]
    if type(first).__name__ == "Independent":
        inner = _stack([member.base_dist for member in members])
        return inner.to_event(first.reinterpreted_batch_ndims)
    arguments = [_arguments(member) for member in members]
    stacked = {
        name: jnp.stack([parameters[name] for parameters in arguments], axis=1)
        for name in arguments[0]
    }
    return type(_bare(first))(**stacked)


def _arguments(member: Any) -> dict[str, Array]:
    """Parameters, each broadcast to the whole batch."""
    base = _bare(member)
    parameters = {
        name: base.__dict__[name] for name in base.arg_constraints if name in base.__dict__
    }
    if "scale_tril" in parameters:  # the other forms of a covariance are made from it
        parameters = {name: parameters[name] for name in ("loc", "scale_tril")}
    batch = tuple(member.batch_shape)

    def wide(name: str, value: Any) -> Array:
        event = np.ndim(value) and base.arg_constraints[name].event_dim
        tail = jnp.shape(value)[np.ndim(value) - event :] if event else ()
        return jnp.broadcast_to(value, (*batch, *tail))

    return {name: wide(name, value) for name, value in parameters.items()}


def _bare(member: Any) -> Any:
    while type(member).__name__ == "ExpandedDistribution":
        member = member.base_dist
    return member


def _kind(member: Any) -> str:
    base = member
    while type(base).__name__ in WRAPPERS:
        base = base.base_dist
    return type(base).__name__


def _probs(member: Any) -> Array:
    probabilities = _bare(member).probs
    if _kind(member).startswith("Bernoulli"):
        return jnp.broadcast_to(probabilities, member.batch_shape)
    return jnp.broadcast_to(probabilities, (*member.batch_shape, probabilities.shape[-1]))


def _weights(weights: ArrayLike | None, k: int) -> Float[Array, " k"]:
    if weights is None:
        return jnp.full(k, 1 / k)
    w = convert.floats(weights, "weights")
    if w.shape != (k,):
        raise ValueError(f"weights: wanted one per member, shape ({k},), got {w.shape}")
    good = isinstance(w, Tracer) or bool(jnp.all(w >= 0) & (jnp.abs(w.sum() - 1) <= 1e-5))
    if not good:
        raise ValueError(f"weights: wanted numbers >= 0 of sum 1, got {np.asarray(w).tolist()}")
    return w


def _same(values: list[PredictionsLike], what: str) -> None:
    if any(value != values[0] for value in values):
        raise ValueError(f"members: wanted the same {what} for all, got {values}")
