"""Compute scores of posteriors of PyTorch, in particular of sbi, by automatic differentiation.

In JAX programs the log densities become callbacks, with first and second derivatives.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxcal.read import Scores, Unnormalized, convert
from jaxcal.sbi.called_back import called_back
from jaxcal.sbi.torch_density import density_of
from jaxcal.typing import Key, PriorLike

if TYPE_CHECKING:
    from torch import Tensor  # pyright: ignore[reportMissingImports]
else:
    Tensor = Any

BATCH = 10_000


class TorchPosterior:
    """A posterior whose log density is computed by torch.

    Networks are evaluated on their own device, in their own float type, in eval mode, and outside
    of ``torch.no_grad`` and ``torch.inference_mode``; ``posterior`` is not modified.

    Args:
        posterior: One of these.

            - A posterior of sbi: NPE, NLE, NRE (sampled in any way), NPSE, FMPE, an
              ``EnsemblePosterior``, or a potential.
            - The estimator that ``.train()`` returns for NPE or NRE (pass ``prior``), not for NLE.
              ValueError for NPE if x has as many numbers as theta: it may be an estimator of NLE.
            - A flow of zuko or lampe, or any function x -> distribution of torch, batch shape [n].
            - A function ``log_prob(thetas, xs)`` of tensors [n, d] and [n, ..] that returns [n] and
              may be unnormalized.
        prior: A distribution of torch, for estimators that have none.
        batch: Number of rows computed at once.
        like: A tensor whose device and type are used for inputs if the posterior has no network.

    Cost: one gradient per row; for FMPE the solution of an ODE and its adjoint per batch. Scores of
    NPSE are the output of its network at the smallest noise level.

    Example:
        >>> import torch
        >>> from jaxcal import sbi
        >>> def log_prob(thetas, xs):  # the exact posterior is N(x / 2, 1 / 2)
        ...     return -((thetas - xs / 2) ** 2).sum(1)
        >>> posterior = sbi.TorchPosterior(log_prob)
        >>> thetas = torch.randn(60, 2)
        >>> pairs = sbi.score_pairs(0, posterior, thetas, thetas + torch.randn(60, 2))
        >>> pairs.scores.at_targets.shape[1]
        2
    """

    def __init__(
        self,
        posterior: Any,
        *,
        prior: PriorLike | None = None,
        batch: int = BATCH,
        like: Any = None,
    ):
        with _torch().inference_mode(False):
            self.density = density_of(posterior, prior)
        self.prior, self.notes = self.density.prior, self.density.notes
        self.batch, self.like = convert.integer(batch, "batch"), like
        if self.density.draw is not None:
            self.sample = self._sample
        if not self.density.slow:
            self.predictions = self.at

    def prepare(self, thetas: Array, xs: PyTree) -> None:
        """Raise ValueError if thetas or xs differ in size from those the network was trained on."""
        wanted = self.density.x_shape
        if wanted is None or isinstance(xs, dict):
            return
        d, size = math.prod(self.density.theta_shape or ()), math.prod(wanted)
        sizes = thetas.shape[1], math.prod(xs.shape[1:])
        if sizes != (d, size):
            swapped = ": are the two swapped, or is it an estimator of NLE? Pass build_posterior()"
            raise ValueError(
                f"thetas and xs: the posterior was trained on {d} parameters and observations of "
                f"shape {wanted}, got {sizes[0]} parameters and observations of shape "
                f"{tuple(xs.shape[1:])}" + (swapped if sizes == (size, d) else "")
            )

    def scored(self, thetas: Array, xs: PyTree, nodes: Array | None) -> Scores:
        self.prepare(thetas, xs)
        at = self.scores(np.asarray(thetas), xs)
        if nodes is None:
            return Scores(jnp.asarray(at, thetas.dtype))
        everywhere = [
            self.scores(np.broadcast_to(node, thetas.shape), xs) for node in np.asarray(nodes)
        ]
        at_nodes = np.stack(everywhere, axis=1)
        return Scores(jnp.asarray(at, thetas.dtype), jnp.asarray(at_nodes, thetas.dtype), nodes)

    def at(self, xs: PyTree) -> Unnormalized:
        """Return the n posteriors given xs [n, ..]; their log densities are callbacks to torch."""
        arrays = jax.tree.map(lambda leaf: convert.numbers(leaf, "xs"), xs)
        return called_back(self, arrays)

    def summaries(self, xs: PyTree) -> np.ndarray | None:
        """Return the network's embedding of xs, [n, q], or None if it has no embedding."""
        embed = self.density.embed
        if embed is None or isinstance(xs, dict):
            return None
        parts = self._walk(None, xs, lambda theta, x: (embed(x),), gradients=False)
        return np.concatenate([part[0] for part in parts])

    def training_moments(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return mean and deviation of the training xs; None if no embedding net stores them."""
        size = math.prod(self.density.x_shape or ())
        for network in self.density.networks if self.density.embed is not None else ():
            of_x = getattr(network, "embedding_net_x", network)  # a ratio has nets of theta and x
            for module in of_x.modules():
                if type(module).__name__ == "Standardize":
                    mean, sd = (part.detach().cpu().numpy() for part in (module._mean, module._std))
                    if mean.size in (1, size):
                        return mean, sd
        return None

    def scores(self, thetas: np.ndarray, xs: PyTree) -> np.ndarray:
        """Return the scores of the pairs, [n, d]; NaN where the density is not finite."""
        return self.logs_and_scores(thetas, xs, logs=False)[1]

    def log_densities(self, thetas: np.ndarray, xs: PyTree) -> np.ndarray:
        """Return the log density of each pair, [n], up to a constant that depends on x."""
        parts = self._walk(thetas, xs, lambda t, x: (self._log_prob(t, x),), gradients=False)
        return np.concatenate([part[0] for part in parts])

    def logs_and_scores(
        self, thetas: np.ndarray, xs: PyTree, *, logs: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities [n] and scores [n, d] of the pairs; scores are NaN where the density
        is not finite. ``logs=False`` returns log densities of 0 if the network outputs scores."""
        both = partial(self._both, logs=logs)
        parts = list(self._walk(thetas, xs, both, gradients=True))
        values, scores = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
        return values, scores

    def curvature(self, thetas: np.ndarray, xs: PyTree, directions: np.ndarray) -> np.ndarray:
        """Return H_i directions[i], [n, d]; H_i: Hessian of log density i. TypeError for ODEs."""
        torch = _torch()
        if self.density.slow:
            raise TypeError("posterior: the solution of an ODE has no second derivatives here")
        directed = iter(np.array_split(directions, range(self.batch, len(thetas), self.batch)))

        def product(theta: Tensor, x: Tensor) -> tuple[Tensor]:
            along = _tensor(torch, next(directed), theta)
            _, slope = self._both(theta, x, logs=False, create_graph=True)
            (row,) = torch.autograd.grad((slope * along).sum(), theta, allow_unused=True)
            return (torch.zeros_like(theta) if row is None else row,)

        return np.concatenate([part[0] for part in self._walk(thetas, xs, product, gradients=True)])

    def _sample(self, key: Key, xs: PyTree, m: int) -> Array:
        torch, draw = _torch(), self.density.draw
        assert draw is not None
        rows = max(1, self.batch // m)
        with torch.random.fork_rng():
            torch.manual_seed(int(jax.random.bits(key, dtype=jnp.uint32)))
            parts = self._walk(None, xs, lambda t, x: (draw(x, m),), gradients=False, rows=rows)
            drawn = np.concatenate([part[0] for part in parts], axis=1)
        return jnp.asarray(np.moveaxis(drawn, 0, 1))

    def _log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        try:
            log_prob = self.density.log_prob(theta, x)
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            raise ValueError(
                f"posterior: its log density fails for tensors of shape {tuple(theta.shape)} and "
                f"{tuple(getattr(x, 'shape', ()))}: {said}"
            ) from error
        if not hasattr(log_prob, "requires_grad"):
            raise TypeError(
                f"posterior: its log density returned {type(log_prob).__name__}, not a torch tensor"
            )
        if math.prod(log_prob.shape) != len(theta):
            raise ValueError(
                f"posterior: wanted one log density for each of {len(theta)} pairs, got shape "
                f"{tuple(log_prob.shape)}"
            )
        return log_prob.reshape(-1)

    def _both(
        self, theta: Tensor, x: Tensor, *, logs: bool, create_graph: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return `logs_and_scores` of one batch as tensors, [b] and [b, d]."""
        torch, density = _torch(), self.density
        if density.score is None:
            log_prob = self._log_prob(theta, x)
            slope = _slope(torch, log_prob, theta, create_graph)
        else:
            slope = density.score(theta, x)
            log_prob = self._log_prob(theta, x) if logs else torch.zeros_like(slope[:, 0])
        # scores are NaN where log densities are not finite: there, torch.where has gradient 0
        reached = torch.isfinite(log_prob)[:, None]
        return log_prob, torch.where(reached, slope, torch.full_like(slope, torch.nan))

    def _walk(
        self,
        thetas: np.ndarray | None,
        xs: PyTree,
        function: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
        *,
        gradients: bool,
        rows: int | None = None,
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield ``function(theta, x)`` of each batch in NumPy; theta is None if ``thetas`` is."""
        torch = _torch()
        leaves = jax.tree.leaves(xs)
        n, size = len(leaves[0] if thetas is None else thetas), rows or self.batch
        with torch.inference_mode(False), torch.set_grad_enabled(gradients), self._evaluated():
            like = self._like(torch)
            for start in range(0, n, size):
                part = slice(start, start + size)
                theta: Any = None
                if thetas is not None:
                    theta = _tensor(torch, thetas[part], like).requires_grad_(gradients)
                x = jax.tree.map(lambda leaf, part=part: _tensor(torch, leaf[part], like), xs)
                outputs = function(theta, self._shaped(x))
                yield tuple(np.array(out.detach().cpu().numpy()) for out in outputs)

    def _like(self, torch: ModuleType) -> Tensor:
        """Return a tensor with the device and type that inputs are converted to."""
        for network in self.density.networks:
            if callable(getattr(network, "parameters", None)):
                for tensor in (*network.parameters(), *network.buffers()):
                    if tensor.is_floating_point():
                        return tensor
        like = self.like
        return like if like is not None and like.is_floating_point() else torch.zeros(())

    @contextlib.contextmanager
    def _evaluated(self) -> Iterator[None]:
        """Put all modules in eval mode, and restore their modes on exit."""
        modules = [
            module
            for network in self.density.networks
            if callable(getattr(network, "modules", None))
            for module in network.modules()
        ]
        modes = [module.training for module in modules]
        try:
            for module in modules:
                module.training = False
            yield
        finally:
            for module, training in zip(modules, modes, strict=True):
                module.training = training

    def _shaped(self, x: Tensor) -> Tensor:
        """Return the observations in the shape that the network expects."""
        wanted = self.density.x_shape
        return x if wanted is None or isinstance(x, dict) else x.reshape(len(x), *wanted)


def _torch() -> ModuleType:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "posterior: a posterior of PyTorch needs PyTorch: pip install 'jaxcal[sbi]'"
        ) from error
    return torch


def _tensor(torch: ModuleType, values: Any, like: Tensor) -> Tensor:
    """Return a copy of values as a tensor on the device and of the type of ``like``."""
    if hasattr(values, "detach"):
        return values.detach().clone().to(like.device, like.dtype)
    return torch.as_tensor(np.array(values)).to(like.device, like.dtype)


def _slope(torch: ModuleType, log_prob: Tensor, theta: Tensor, create_graph: bool) -> Tensor:
    if not log_prob.requires_grad:
        raise ValueError(
            "posterior: its log density is detached from theta, so torch cannot give a score: "
            "remove .detach(), .numpy(), torch.no_grad() or track_gradients=False inside it"
        )
    (slope,) = torch.autograd.grad(
        log_prob.sum(), theta, allow_unused=True, create_graph=create_graph
    )
    if slope is None:
        raise ValueError("posterior: its log density does not depend on theta")
    return slope
