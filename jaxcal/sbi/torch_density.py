"""Extract log densities from posteriors of torch: objects of sbi, zuko, lampe; distributions.

The functions take b rows of tensors, parameters [b, d] and observations [b, ..], and return b rows.
"""

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxcal.read import convert
from jaxcal.sbi.space import support_of

if TYPE_CHECKING:
    from torch import Tensor  # pyright: ignore[reportMissingImports]
else:
    Tensor = Any
Estimator: TypeAlias = Any  # a network of sbi, zuko or lampe, which have no common class
LogProb: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Prior: TypeAlias = Any  # a distribution of torch, or another object with log_prob


@dataclass(frozen=True)
class TorchDensity:
    """Functions and settings by which `TorchPosterior` evaluates and samples a posterior.

    Attributes:
        log_prob: ``log_prob(theta, x)``, log densities [b], up to a constant for each x.
        score: ``score(theta, x)``, [b, d]; None if it is computed as the gradient of log_prob.
        draw: ``draw(x, m)``, m draws of each posterior, [m, b, d]; None if that needs MCMC.
        embed: ``embed(x)``, the embedding of x by the network, [b, q]; None if it has none.
        prior: Prior of the posterior, or None.
        networks: Modules to put in eval mode; their first float tensor sets device and type.
        theta_shape: Shape of one parameter vector that the network expects, or None.
        x_shape: Shape of one observation that the network expects, or None.
        slow: Whether each log density needs an ODE to be solved.
        notes: Codes of ways in which the tested density differs from that of ``.sample()``.
    """

    log_prob: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor] | None = None
    draw: Callable[[Tensor, int], Tensor] | None = None
    embed: Callable[[Tensor], Tensor] | None = None
    prior: Prior = None
    networks: tuple[Estimator, ...] = ()
    theta_shape: tuple[int, ...] | None = None
    x_shape: tuple[int, ...] | None = None
    slow: bool = False
    notes: dict[str, bool] = field(default_factory=dict)


def density_of(posterior: Estimator, prior: Prior = None) -> TorchDensity:
    """Return the `TorchDensity` of an object of torch, sbi, zuko or lampe.

    TypeError if the object has no log density, or only for one observation. ValueError if it is a
    likelihood or ratio without a prior, or an estimator that may be of NPE or of NLE.

    Args:
        posterior: See `jaxcal.sbi.TorchPosterior`.
        prior: Prior for an estimator of a likelihood or ratio; ignored if the object has one.
    """
    name = type(posterior).__name__
    if name == "VIPosterior":
        raise TypeError(
            "posterior: a VIPosterior is fitted to one x and says nothing of the others: pass the "
            "potential it was made from, or an amortized posterior"
        )
    if callable(getattr(posterior, "build_posterior", None)):
        raise TypeError(
            f"posterior: got {name}, which trains one: pass what its build_posterior() returns"
        )
    posterior = _outside_inference_mode(posterior)
    potential = getattr(posterior, "potential_fn", posterior)
    for owner in (posterior, potential):
        prior_of_owner = getattr(owner, "prior", None)
        prior = prior if prior_of_owner is None else prior_of_owner
    if hasattr(posterior, "posteriors") and hasattr(posterior, "weights"):
        return _ensemble(posterior, prior)
    for owner in (posterior, potential):
        if hasattr(owner, "posterior_estimator"):
            return _direct(owner, prior)
        if hasattr(owner, "vector_field_estimator"):
            return _vector_field(owner.vector_field_estimator, prior)
        if hasattr(owner, "likelihood_estimator"):
            return _likelihood(owner.likelihood_estimator, prior)
        if hasattr(owner, "ratio_estimator"):
            return _ratio(owner.ratio_estimator, prior)
    if hasattr(potential, "set_x"):
        return TorchDensity(lambda theta, x: _potential_at(potential, theta, x), prior=prior)
    if hasattr(posterior, "ode_fn") and hasattr(posterior, "condition_shape"):
        return _vector_field(posterior, prior)
    if hasattr(posterior, "unnormalized_log_ratio") or _of_lampe(posterior, "NRE"):
        return _ratio(posterior, prior)
    if hasattr(posterior, "input_shape") and hasattr(posterior, "condition_shape"):
        return _estimator(posterior, prior)
    if callable(getattr(posterior, "flow", None)):
        return _conditional(posterior.flow, prior, (posterior,))
    if hasattr(posterior, "log_prob") and hasattr(posterior, "batch_shape"):
        return _conditional(lambda x: posterior, prior, ())
    if callable(posterior):
        networks = (posterior,) if hasattr(posterior, "parameters") else ()
        if _arguments(posterior) == 1:
            return _conditional(posterior, prior, networks)
        function: Any = posterior
        return TorchDensity(function, prior=prior, networks=networks)
    raise TypeError(
        f"posterior: {name} has neither a posterior_estimator nor a potential_fn: pass a function "
        f"log_prob(thetas, xs) of torch tensors that returns one number per row, or a function "
        f"x -> distribution"
    )


def _direct(owner: Estimator, prior: Prior) -> TorchDensity:
    """Return the density of NPE without sbi's leakage correction, a constant for each x."""
    estimator = owner.posterior_estimator
    if getattr(owner, "_apply_correction", False):  # NPE-A after several rounds
        return TorchDensity(
            _cut(lambda theta, x: owner._corrected_log_prob(theta[None], x)[0], prior),
            prior=prior,
            **_shapes(estimator, "input_shape", "condition_shape"),
        )
    return _posterior_estimator(estimator, prior)


def _posterior_estimator(estimator: Estimator, prior: Prior) -> TorchDensity:
    return TorchDensity(
        _cut(lambda theta, x: estimator.log_prob(theta.unsqueeze(0), condition=x)[0], prior),
        draw=lambda x, m: estimator.sample((m,), condition=x),
        embed=_embedding(estimator, "embedding_net"),
        prior=prior,
        **_shapes(estimator, "input_shape", "condition_shape"),
    )


def _cut(log_prob: LogProb, prior: Prior) -> LogProb:
    """Return the log density, -infinity outside of the support that the prior declares, where sbi
    draws nothing."""
    import torch  # pyright: ignore[reportMissingImports]
    from torch.distributions import constraints  # pyright: ignore[reportMissingImports]

    support = support_of(prior)
    if not isinstance(support, constraints.Constraint):
        return log_prob
    with torch.random.fork_rng():
        like = prior.sample((1,))

    def cut(theta: Tensor, x: Tensor) -> Tensor:
        inside = support.check(theta.to(like.device, like.dtype)).reshape(len(theta), -1)
        return log_prob(theta, x).masked_fill(~inside.all(dim=1).to(theta.device), -math.inf)

    return cut


def _vector_field(estimator: Estimator, prior: Prior) -> TorchDensity:
    """Return the density of NPSE or FMPE by probability flow; scores of NPSE are the network's."""
    import torch  # pyright: ignore[reportMissingImports]
    from sbi.inference.potentials import vector_field_potential  # pyright: ignore[reportMissingImports]

    potential, _ = vector_field_potential.vector_field_estimator_based_potential(
        estimator, None, None
    )
    composed = bool(getattr(estimator, "compose_enabled", False))

    def log_prob(theta: Tensor, x: Tensor) -> Tensor:
        logs = potential.neural_ode(x).log_prob(estimator.to_z(theta) if composed else theta)
        return logs - estimator.log_abs_det() if composed else logs

    def draw(x: Tensor, m: int) -> Tensor:
        drawn = potential.neural_ode(x).sample((m,))
        return estimator.from_z(drawn) if composed else drawn

    def score(theta: Tensor, x: Tensor) -> Tensor:
        time = torch.full((1,), estimator.t_min, dtype=theta.dtype, device=theta.device)
        if not composed:
            return estimator.score(theta, x, t=time)
        return estimator.score(estimator.to_z(theta), x, t=time) / estimator._theta_scale

    # flow matching's score divides by a small t, which amplifies rounding; gradients do not
    flow_matching = hasattr(estimator, "noise_scale")
    return TorchDensity(
        log_prob,
        None if flow_matching or not getattr(estimator, "SCORE_DEFINED", False) else score,
        draw,
        _embedding(estimator, "embedding_net"),
        prior,
        slow=True,
        **_shapes(estimator, "input_shape", "condition_shape"),
    )


def _likelihood(estimator: Estimator, prior: Prior) -> TorchDensity:
    prior_log_prob = _log_prob_of_prior(prior, "a likelihood (NLE)")
    return TorchDensity(
        lambda theta, x: (
            estimator.log_prob(x.unsqueeze(0), condition=theta)[0] + prior_log_prob(theta)
        ),
        prior=prior,
        **_shapes(estimator, "condition_shape", "input_shape"),
    )


def _ratio(estimator: Estimator, prior: Prior) -> TorchDensity:
    prior_log_prob = _log_prob_of_prior(prior, "a ratio (NRE)")
    return TorchDensity(
        lambda theta, x: estimator(theta, x).reshape(-1) + prior_log_prob(theta),
        embed=_embedding(estimator, "embedding_net_x"),
        prior=prior,
        **_shapes(estimator, "input_shape", "condition_shape"),
    )


def _estimator(estimator: Estimator, prior: Prior) -> TorchDensity:
    """Return the density of an estimator from ``.train()``, which must be of NPE. ValueError if
    theta and x have equal size: it may be of NLE (`TorchPosterior.prepare` detects other sizes)."""
    input_size, size_given = map(math.prod, (estimator.input_shape, estimator.condition_shape))
    if input_size == size_given:
        raise ValueError(
            f"posterior: a {type(estimator).__name__} of {input_size} numbers given {size_given} "
            f"is a density of theta given x (NPE) or of x given theta (NLE), and does not say "
            f"which: pass what build_posterior() returns, or a function log_prob(thetas, xs)"
        )
    return _posterior_estimator(estimator, prior)


def _conditional(
    of: Callable[[Tensor], Prior], prior: Prior, networks: tuple[Estimator, ...]
) -> TorchDensity:
    """Return the density of theta given x, from a function ``of`` that returns the distributions
    of theta for b rows of x."""

    def at(x: Tensor) -> Prior:
        distribution = of(x)
        if not hasattr(distribution, "log_prob"):
            raise TypeError(
                f"posterior: wanted a function x -> distribution, or log_prob(thetas, xs); the "
                f"function of one argument returned {convert.say(distribution)}"
            )
        return distribution

    def log_prob(theta: Tensor, x: Tensor) -> Tensor:
        distribution = at(x)
        batch = tuple(getattr(distribution, "batch_shape", (len(theta),)))
        event = tuple(getattr(distribution, "event_shape", theta.shape[1:]))
        if batch != (len(theta),) or event not in ((theta.shape[1],), ()):
            raise ValueError(
                f"posterior: wanted a distribution with batch shape ({len(theta)},) and event "
                f"shape ({theta.shape[1]},), one per observation, got batch shape {batch} and "
                f"event shape {event}: torch.distributions.Independent(.., 1) makes the last batch "
                f"axis an event"
            )
        if not event and theta.shape[1] != 1:
            raise ValueError(
                f"posterior: its distributions are of one number, but thetas have {theta.shape[1]}"
            )
        return distribution.log_prob(theta if event else theta[:, 0])

    def draw(x: Tensor, m: int) -> Tensor:
        drawn = at(x).sample((m,))
        return drawn if drawn.dim() == 3 else drawn.unsqueeze(-1)

    slow = any(hasattr(network, "freqs") for network in networks)  # lampe's FMPE solves an ODE
    return TorchDensity(log_prob, draw=draw, prior=prior, networks=networks, slow=slow)


def _ensemble(posterior: Estimator, prior: Prior) -> TorchDensity:
    """Return the density of an ensemble: the weighted sum of its members' densities."""
    import torch  # pyright: ignore[reportMissingImports]

    members = [density_of(member, prior) for member in posterior.posteriors]
    weights = torch.as_tensor(posterior.weights)

    def log_prob(theta: Tensor, x: Tensor) -> Tensor:
        logs = torch.stack([member.log_prob(theta, x) for member in members])
        shares = torch.log(weights).to(logs.device, logs.dtype)
        return torch.logsumexp(shares[:, None] + logs, dim=0)

    def draw(x: Tensor, m: int) -> Tensor:
        drawn = torch.stack([member.draw(x, m) for member in members if member.draw is not None])
        picks = torch.multinomial(weights, m * len(x), replacement=True).to(drawn.device)
        picks = picks.reshape(1, m, len(x), 1).expand(1, *drawn.shape[1:])
        return drawn.gather(0, picks)[0]

    first = members[0]
    normalized = all(member.draw is not None for member in members)
    leaking = normalized and not _unbounded(prior)
    return TorchDensity(
        log_prob,
        draw=draw if normalized else None,
        embed=first.embed,
        prior=prior,
        networks=tuple(network for member in members for network in member.networks),
        theta_shape=first.theta_shape,
        x_shape=first.x_shape,
        slow=any(member.slow for member in members),
        notes={"ensemble-as-potential": not normalized, "leaking-ensemble": leaking},
    )


def _unbounded(prior: Prior) -> bool:
    """Return whether a torch prior has the whole space as support; True also if it is unknown."""
    support = support_of(prior)
    if support is None or not hasattr(support, "check"):
        return True
    import torch  # pyright: ignore[reportMissingImports]

    with torch.random.fork_rng():
        far = torch.full_like(prior.sample((1,)), 1e30)
    return all(bool(torch.all(support.check(edge))) for edge in (far, -far))


def _potential_at(potential: Estimator, theta: Tensor, x: Tensor) -> Tensor:
    """Return the potential of each pair, [b]; finally restore the observation of ``potential``."""
    observed = {
        name: vars(potential)[name] for name in ("_x_o", "_x_is_iid") if name in vars(potential)
    }
    try:
        potential.set_x(x, x_is_iid=False)
        return potential(theta, track_gradients=True).reshape(-1)
    finally:
        for name, value in observed.items():
            setattr(potential, name, value)


def _log_prob_of_prior(prior: Prior, whose: str) -> Callable[[Tensor], Tensor]:
    if not hasattr(prior, "log_prob"):
        raise ValueError(
            f"prior: {whose} needs one to be a posterior: pass prior= with a log_prob, or what "
            f"build_posterior() returns"
        )
    import torch  # pyright: ignore[reportMissingImports]

    with torch.random.fork_rng():
        like = prior.sample((1,))

    def log_prob(theta: Tensor) -> Tensor:
        return prior.log_prob(theta.to(like.device, like.dtype)).to(theta.device, theta.dtype)

    return log_prob


def _shapes(estimator: Estimator, theta: str, x: str) -> dict[str, Any]:
    """Return the fields ``networks``, ``theta_shape`` and ``x_shape`` of `TorchDensity`; ``theta``
    and ``x`` name the estimator's attributes with these shapes."""
    shapes = (getattr(estimator, name, None) for name in (theta, x))
    theta_shape, x_shape = (None if shape is None else tuple(shape) for shape in shapes)
    return {"networks": (estimator,), "theta_shape": theta_shape, "x_shape": x_shape}


def _embedding(estimator: Estimator, name: str) -> Callable[[Tensor], Tensor] | None:
    network = getattr(estimator, name, None)
    return None if network is None else lambda x: network(x).reshape(len(x), -1)


def _outside_inference_mode(posterior: Estimator) -> Estimator:
    """Return the posterior, or a copy that allows gradients if the posterior's parameters were
    created in torch.inference_mode()."""
    networks = [posterior, *vars(posterior).values()] if hasattr(posterior, "__dict__") else []
    for network in networks:
        is_module = hasattr(network, "state_dict") and hasattr(network, "parameters")
        if is_module and any(parameter.is_inference() for parameter in network.parameters()):
            return copy.deepcopy(posterior)
    return posterior


def _of_lampe(posterior: Estimator, name: str) -> bool:
    return any(
        base.__name__ == name and base.__module__.split(".")[0] == "lampe"
        for base in type(posterior).__mro__
    )


def _arguments(function: Callable[..., object]) -> int:
    """Return 1 if a function has or requires exactly one positional argument; else 2."""
    forward = getattr(function, "forward", function)
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return 2
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in parameters if p.kind in positional]
    needed = [p for p in taken if p.default is p.empty]
    return 1 if len(taken) == 1 or len(needed) == 1 else 2
