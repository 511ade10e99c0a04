"""`repair_posterior`: correct the errors of a posterior by a map fitted to simulated pairs.

Repaired posteriors are evaluated and sampled with arrays or tensors of torch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.read import Scores, checks, convert
from jaxcal.read.predictions import along_last
from jaxcal.read.scores import each_density, scores_at
from jaxcal.repairing import repair as repairing
from jaxcal.repairing.result import Repair
from jaxcal.results import rows_in_one_order
from jaxcal.sbi.adapters import as_posterior
from jaxcal.sbi.pairs import PairOptions, inputs_of, score_pairs, summarized
from jaxcal.sbi.posteriors import (
    ArrayPosterior,
    Densities,
    DistributionPosterior,
    PairedSampler,
    Sampler,
    is_tensor,
)
from jaxcal.sbi.space import Space, bound_again, freed
from jaxcal.sbi.suspicions import in_sentences
from jaxcal.typing import ArrayLike, Key, KeyLike, Observations, PosteriorLike

TRAINED = "  the gain is valid only if none of these pairs trained the posterior"


@dataclass(frozen=True, eq=False)
class Repaired:
    """A repaired posterior with the methods that tests call: scores, densities, map of draws.

    Attributes:
        scorer: The original posterior, over original parameters.
        space: Bounds of the original parameters. The map acts on free parameters.
        repair: The map and its certificate.
        features: ``features(xs)``, the inputs [n, q] of the map.
    """

    scorer: Densities
    space: Space
    repair: Repair
    features: Callable[[PyTree], Array]

    @property
    def prior(self) -> Any:
        """Prior that the original posterior has, or None."""
        return getattr(self.scorer, "prior", None)

    @property
    def reader(self) -> Callable[[Any, str], Array]:
        """Function (value, name) that converts observations to arrays."""
        return getattr(self.scorer, "reader", checks.features)

    def predictions(self, xs: PyTree) -> Any:
        """Return the repaired posteriors given n observations, over the original parameters."""
        moved = self.repair.predictions(self._original(xs), self.features(xs))
        return bound_again(moved, self.space)

    def scored(self, thetas: Array, xs: PyTree, nodes: Array | None) -> Scores:
        """Return scores of the repaired posteriors at thetas [n, d] and at nodes [m, d]."""
        at, at_nodes = scores_at(self.predictions(xs), thetas, nodes)
        return Scores(at) if nodes is None else Scores(at, at_nodes, nodes)

    def moved(self, draws: Float[Array, "n m d"], xs: PyTree) -> Float[Array, "n m d"]:
        """Map draws [n, m, d] of the original posteriors given xs to draws of the repaired ones."""
        original, inputs = self._original(xs), self.features(xs)
        far = -math.log(float(jnp.finfo(draws.dtype).tiny))
        us, bounded = self.space.free(draws), jnp.asarray(self.space.bounded)
        us = jnp.where(bounded, jnp.clip(us, -far, far), us)  # rounding may put draws on a bound
        thetas = self.space.bound(self.repair.draws(us, original, inputs))
        low, high = (along_last(edge, thetas) for edge in (self.space.low, self.space.high))
        return jnp.clip(thetas, low, high)

    def _original(self, xs: PyTree) -> Any:
        return freed(self.scorer.predictions(xs), self.space)


@dataclass(frozen=True, eq=False)
class RepairedSampler(Repaired):
    """A repaired posterior whose original can be sampled."""

    def sample(self, key: Key, xs: PyTree, m: int) -> Float[Array, "n m d"]:
        scorer: Any = self.scorer
        drawn = PairedSampler(scorer, xs, self.space.low.dtype, self.space)
        return self.moved(drawn(key, m), xs)


@dataclass(frozen=True, eq=False, repr=False)
class RepairedPosterior:
    """Result of `jaxcal.sbi.repair_posterior`: the repaired posterior, for any observation.

    Every test of `jaxcal.sbi` accepts it, in particular `check_posterior`.

    Attributes:
        source: The original posterior, as passed.
        repaired: The repaired posterior as a `Repaired`, which tests call.
        x_shapes: Shape of one observation, or a dict of shapes.
        notes: Notes on the pairs, as in `ScoredPairs`.
        x_names: Names of the columns of x if the pairs had a data frame, else ().
    """

    source: Any
    repaired: Repaired
    x_shapes: PyTree
    notes: dict[str, Any]
    x_names: tuple[str, ...] = ()

    @property
    def certificate(self) -> Repair:
        """`Repair`: the map, its gain in nats with limits, and the tests before and after it.
        Gain and tests are invalid if the posterior was trained on the pairs of the repair."""
        return self.repaired.repair

    def __repr__(self) -> str:
        lines = ["repaired posterior", repr(self.certificate), TRAINED]
        return "\n".join(lines + in_sentences(self.notes))

    @property
    def default_x(self) -> Any:
        """Observation that sbi's ``set_default_x`` gave the original, or None."""
        return getattr(self.source, "default_x", None)

    def predictions(self, xs: PyTree) -> Any:
        """Return the repaired posteriors given n observations, as `jaxcal.sbi.predictions` does.
        The map of each posterior is computed once, in this call, not for each log density."""
        return self.repaired.predictions(self._rows(xs))

    def log_prob(self, theta: ArrayLike, x: Any = None) -> Any:
        """Return log densities of the repaired posterior, normalized if those of the original are.

        Densities of sbi's NPE are normalized within the bounds. Returned tensors have no gradients.

        Args:
            theta: Parameters, [b, d] or [d].
            x: One observation for all thetas, or b of them; by default `default_x`.

        Returns:
            Log densities, [b] or []; -infinity outside the bounds. A tensor if theta or x is one.

        Cost: about 130 + 384 max(2, d) log densities per observation, to find its map.
        """
        thetas = convert.floats(theta, "theta")
        d = len(self.repaired.space.low)
        if thetas.ndim not in (1, 2) or thetas.shape[-1] != d:
            raise ValueError(f"theta: wanted shape [b, {d}] or [{d}], got {thetas.shape}")
        rows, observed = thetas.reshape(-1, d), self._observation(x)
        xs = self._rows(observed)
        n = len(jax.tree.leaves(xs)[0])
        if n not in (1, len(rows)):
            raise ValueError(f"x: wanted one observation or {len(rows)}, one per theta, got {n}")
        logs = _logs(self.repaired.predictions(xs), rows, one=n == 1)
        logs = logs - self._log_inside(observed, n).astype(logs.dtype)
        return like_inputs((theta, observed), logs if thetas.ndim == 2 else logs[0])

    def sample(
        self, shape: Any, x: Any = None, *, key: KeyLike | None = None, **options: Any
    ) -> Any:
        """Return draws of the original posterior, mapped to draws of the repaired one.

        Args:
            shape: Shape of the draws, a tuple.
            x: One observation; by default `default_x`.
            key: Random key; required unless the original is of sbi (it uses torch's generator).
            **options: Options of ``sample`` of sbi's posterior.

        Returns:
            Draws, [*shape, d]; a tensor if original draws or x are. TypeError without a sampler.
        """
        shape, observed = tuple(shape), self._observation(x)
        if hasattr(self.source, "default_x") and hasattr(self.source, "sample"):  # as sbi's
            keyed = {"key": key} if isinstance(self.source, RepairedPosterior) else {}
            drawn = self.source.sample(shape, x=observed, **keyed, **options)
            return self.draws(drawn, observed)
        if not isinstance(self.repaired, RepairedSampler):
            raise TypeError(
                "posterior: the original offers no draws: draw from it, for example by MCMC, and "
                "map these draws by .draws(draws, x)"
            )
        if key is None:
            raise TypeError("key: wanted a random key, as the original draws with JAX")
        drawn = self.repaired.sample(convert.key(key), self._one(observed), math.prod(shape))
        return like_inputs((observed,), drawn[0].reshape(*shape, -1))

    def sample_batched(self, shape: Any, x: Any, **options: Any) -> Any:
        """Return draws [*shape, b, d] given b observations x, by sbi's ``sample_batched``."""
        drawn = self.source.sample_batched(tuple(shape), x=x, **options)
        values = convert.floats(drawn, "draws")
        rows = jnp.moveaxis(values.reshape(-1, *values.shape[-2:]), 1, 0)
        moved = self.repaired.moved(rows, self._rows(x))
        return like_inputs((drawn,), jnp.moveaxis(moved, 0, 1).reshape(values.shape))

    def draws(self, draws: ArrayLike, x: Any = None) -> Any:
        """Map draws [.., d] of the original, given one observation x, to draws of the repaired."""
        values = convert.floats(draws, "draws")
        d = len(self.repaired.space.low)
        if values.ndim < 1 or values.shape[-1] != d:
            raise ValueError(f"draws: wanted shape [.., {d}], got {values.shape}")
        moved = self.repaired.moved(values.reshape(1, -1, d), self._one(self._observation(x)))
        return like_inputs((draws,), moved.reshape(values.shape))

    def _observation(self, x: Any) -> Any:
        observed = self.default_x if x is None else x
        if observed is None:
            raise ValueError("x: wanted an observation; the original has no default_x")
        return observed

    def _rows(self, x: Any) -> PyTree:
        """Return one or several observations with a leading axis; ValueError for wrong shapes."""

        def rows(leaf: Any, shape: tuple[int, ...]) -> Array:
            array = getattr(self.repaired, "reader", checks.features)(leaf, "x")
            if array.shape == shape:
                return array[None]
            if array.shape[1:] == shape:
                return array
            raise ValueError(
                f"x: wanted an observation of shape {shape} or several of them, got {array.shape}"
            )

        if isinstance(self.x_shapes, dict):
            return {name: rows(x[name], shape) for name, shape in self.x_shapes.items()}
        series = hasattr(x, "iloc") and x.ndim == 1  # one row of a data frame
        names = tuple(x.index if series else convert.column_names(x))
        if set(names) & set(self.x_names) and names != self.x_names:
            raise ValueError(f"x: wanted the columns {self.x_names} of the fit, got {names}")
        return rows(x, self.x_shapes)

    def _one(self, x: Any) -> PyTree:
        xs = self._rows(x)
        if (n := len(jax.tree.leaves(xs)[0])) != 1:
            raise ValueError(f"x: wanted one observation, got {n}; sample_batched takes several")
        return xs

    def _log_inside(self, x: Any, n: int) -> Array:
        """Return the log mass of sbi's NPE within the prior's bounds given x, [n]; 0 for others."""
        original = self.source
        while isinstance(original, RepairedPosterior):
            original = original.source
        share = getattr(original, "leakage_correction", None)
        if share is None or not self.repaired.space.bounded.any():
            return jnp.zeros(n)
        if not is_tensor(x):
            import torch  # pyright: ignore[reportMissingImports]

            x = torch.tensor(np.array(checks.features(x, "x")), dtype=torch.float32)  # as sbi does
        rows = [x] if n == 1 else [x[k : k + 1] for k in range(n)]
        return jnp.log(jnp.asarray([float(share(x=row)) for row in rows]))


@partial(jax.jit, static_argnames="one")
def _logs(predictions: Any, thetas: Float[Array, "b d"], *, one: bool) -> Float[Array, " b"]:
    """Return log densities of b posteriors at one theta each, or of one posterior at b thetas."""
    at = lambda log_density, theta: log_density(theta)  # noqa: E731
    if not one:
        return each_density(predictions, at, thetas)
    return jax.vmap(lambda theta: each_density(predictions, at, theta[None])[0])(thetas)


def like_inputs(inputs: Sequence[Any], values: Array) -> Any:
    """Return values as a tensor like the first tensor in ``inputs``; unchanged if there is none."""
    tensors = [one for one in inputs if is_tensor(one)]
    if not tensors:
        return values
    import torch  # pyright: ignore[reportMissingImports]

    return torch.as_tensor(np.array(values)).to(tensors[0].device, tensors[0].dtype)


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
    assert isinstance(repair, Repair)
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
