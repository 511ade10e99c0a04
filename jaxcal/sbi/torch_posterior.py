"""Posteriors of PyTorch, of the library sbi above all: scores by torch's own autograd."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.models import Scores

BATCH = 10_000


class TorchPosterior:
    """A posterior whose log density is computed by torch.

    ``posterior``: of sbi a ``DirectPosterior`` (NPE), a posterior that samples a potential (NLE
    and NRE with MCMC, rejection or importance sampling), or a potential itself; or any function
    ``log_prob(thetas, xs)`` of tensors [n, d] and [n, ..] that returns [n] and may be unnormalized.
    ``batch``: rows under way at once. The object's own x, if it was set, is put back.
    """

    def __init__(self, posterior: Any, *, batch: int = BATCH):
        self.log_prob = log_prob_of(posterior)
        self.prior = getattr(posterior, "prior", None)
        if self.prior is None:
            self.prior = getattr(getattr(posterior, "potential_fn", None), "prior", None)
        self.batch = batch

    def scored(self, thetas: Array, xs: Any, nodes: Array | None) -> Scores:
        at = self.scores(np.asarray(thetas), xs)
        if nodes is None:
            return Scores(jnp.asarray(at, thetas.dtype))
        everywhere = [
            self.scores(np.broadcast_to(node, thetas.shape), xs) for node in np.asarray(nodes)
        ]
        at_nodes = np.stack(everywhere, axis=1)
        return Scores(jnp.asarray(at, thetas.dtype), jnp.asarray(at_nodes, thetas.dtype), nodes)

    def scores(self, thetas: np.ndarray, xs: Any) -> np.ndarray:
        """The score of every pair, [n, d], in batches; NaN where the log density is not finite."""
        import torch  # pyright: ignore[reportMissingImports]

        kind = torch.get_default_dtype()
        rows = [slice(i, i + self.batch) for i in range(0, len(thetas), self.batch)]
        gradients = []
        with torch.enable_grad():
            for part in rows:
                theta = torch.as_tensor(np.array(thetas[part]), dtype=kind).requires_grad_(True)
                x = xs[part] if hasattr(xs, "detach") else np.array(xs[part])
                log_prob = self.log_prob(theta, torch.as_tensor(x, dtype=kind))
                gradients.append(_gradient(torch, log_prob, theta))
        return np.concatenate(gradients)


def _gradient(torch: Any, log_prob: Any, theta: Any) -> np.ndarray:
    n = theta.shape[0]
    if not hasattr(log_prob, "requires_grad"):
        raise TypeError(
            f"posterior: its log density returned {type(log_prob).__name__}, not a torch tensor"
        )
    if int(np.prod(tuple(log_prob.shape))) != n:
        raise ValueError(
            f"posterior: wanted one log density for each of {n} pairs, got shape "
            f"{tuple(log_prob.shape)}"
        )
    if not log_prob.requires_grad:
        raise ValueError(
            "posterior: its log density is detached from theta, so torch cannot give a score: "
            "remove .detach(), .numpy(), torch.no_grad() or track_gradients=False inside it"
        )
    (gradient,) = torch.autograd.grad(log_prob.sum(), theta, allow_unused=True)
    if gradient is None:
        raise ValueError("posterior: its log density does not depend on theta")
    scores = np.array(gradient.detach().cpu().numpy())
    logs = np.asarray(log_prob.detach().cpu().numpy()).reshape(n)
    scores[~np.isfinite(logs)] = np.nan  # torch.where(inside, .., -inf) has gradient 0 outside
    return scores


def log_prob_of(posterior: Any) -> Callable[[Any, Any], Any]:
    """``log_prob(thetas, xs)`` on tensors, row by row, of what sbi or the user has."""
    name = type(posterior).__name__
    if name == "VIPosterior":
        raise TypeError(
            "posterior: a VIPosterior is fitted to one x and says nothing of the others: pass the "
            "potential it was made from, or an amortized posterior"
        )
    if hasattr(posterior, "posterior_estimator"):  # NPE, without its correction for leakage
        estimator = posterior.posterior_estimator
        return lambda theta, x: estimator.log_prob(theta.unsqueeze(0), condition=x)[0]
    potential = getattr(posterior, "potential_fn", posterior)
    if hasattr(potential, "set_x"):
        return lambda theta, x: _potential_at(potential, theta, x)
    if callable(potential):
        return potential
    raise TypeError(
        f"posterior: {name} has neither a posterior_estimator nor a potential_fn: pass a function "
        f"log_prob(thetas, xs) of torch tensors that returns one number a row"
    )


def _potential_at(potential: Any, theta: Any, x: Any) -> Any:
    """One potential a pair; the observation that the potential held is put back."""
    observed = {
        name: vars(potential)[name] for name in ("_x_o", "_x_is_iid") if name in vars(potential)
    }
    try:
        potential.set_x(x, x_is_iid=False)
        return potential(theta, track_gradients=True).reshape(-1)
    finally:
        for name, value in observed.items():
            setattr(potential, name, value)
