r"""Draw candidates: points that are exchangeable with the target under calibration.

Take a reversible Markov chain whose invariant distribution is the prediction. Run it from the
target y to a centre c, and then m times from c to :math:`a_1, .., a_m`. If y is a draw of the
prediction, :math:`y, a_1, .., a_m` are exchangeable for every number of steps and mixing speed,
without burn-in. Only unnormalized log densities are needed.
Source: Besag and Clifford (1989), Section 2.

Jumps between modes are proposed by Gaussian mixtures fitted to the log densities: weighted points
are resampled with Gaussian noise in several rounds (population Monte Carlo). The fit depends on
predictions and nodes only, never on a target, so candidates remain exchangeable under moves that
the mixture proposes, even if it fits badly.
Source: Cappe et al. (2004) for the rounds; Silverman (1986), Section 4.3, for the bandwidth.
"""

import math
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.numerics import at_least, binary_size, bisected
from jaxcal.read import convert
from jaxcal.typing import Key, Points, Scalar

ROUNDS = 3
SHARE = 0.25  # effective sample size after weights are tempered, as a share of the points
HALVINGS = 12  # bisection steps for the tempering exponent
RIDGE = 1e-3  # share of each variance that is added to it: points may be fewer than dimensions


class Mixtures(eqx.Module):
    """n mixtures of k Gaussians; all k of mixture i have covariance L L^T, L = ``roots[i]``."""

    centers: Float[Array, "n k d"]
    log_weights: Float[Array, "n k"]
    roots: Float[Array, "n d d"]

    def log_density(self, points: Float[Array, "n m d"]) -> Float[Array, "n m"]:
        """Return the log density of each mixture at its m points."""
        ts, centers = (_solve(self.roots, at) for at in (points, self.centers))
        squares = jnp.sum((ts[:, :, None] - centers[:, None]) ** 2, axis=-1)
        heights = jnp.sum(jnp.log(jnp.diagonal(self.roots, axis1=1, axis2=2)), axis=1)
        logs = self.log_weights[:, None] - squares / 2
        constant = points.shape[-1] * math.log(2 * math.pi) / 2
        return jax.scipy.special.logsumexp(logs, axis=-1) - heights[:, None] - constant

    def sample(self, key: Key, m: int) -> Float[Array, "n m d"]:
        """Return m independent draws of each mixture."""
        n, _, d = self.centers.shape
        place_key, noise_key = jax.random.split(key)
        ends = jnp.cumsum(jnp.exp(self.log_weights), axis=1)
        heights = ends[:, -1:] * jax.random.uniform(place_key, (n, m), ends.dtype)
        places = jnp.sum(ends[:, None, :-1] < heights[:, :, None], axis=2)
        noise = jax.random.normal(noise_key, (n, m, d), self.centers.dtype)
        means = jnp.take_along_axis(self.centers, places[:, :, None], axis=1)
        return means + jnp.einsum("nij,nmj->nmi", self.roots, noise)


def fitted(key: Key, log_densities: Any, nodes: Float[Array, "k d"], n: int) -> Mixtures:
    """Return n Gaussian mixtures fitted to n unnormalized densities by population Monte Carlo.

    ``log_densities`` maps points [n, k, d] to values [n, k]. The first round computes importance
    weights of the nodes, with a normal proposal; later rounds weight k draws of the last mixture.
    Weights are tempered to effective sample size >= k / 4. Cost: 3 n k log densities.
    """
    k, d = nodes.shape
    # divided by powers of two, so that variances neither overflow nor underflow
    size = binary_size(jnp.max(jnp.abs(nodes - jnp.mean(nodes, axis=0)[None]), axis=0))[None]
    nodes = nodes / size
    center = jnp.mean(nodes, axis=0, keepdims=True)
    width = jnp.cov(nodes.T).reshape(1, d, d)
    root = jnp.linalg.cholesky(_ridged(width))
    one = Mixtures(center[None], jnp.zeros((1, 1), nodes.dtype), root)
    points = jnp.broadcast_to(nodes, (n, k, d))
    first = Mixtures(points, jnp.full((n, k), -math.log(k), nodes.dtype), jnp.tile(root, (n, 1, 1)))

    def step(carry: Any, key: Key) -> tuple[Any, None]:
        points, proposed, _ = carry
        logs = log_densities(points * size[None])
        ratios = jnp.where(jnp.isfinite(logs), logs - proposed, -jnp.inf)
        mixtures = _around(points, jax.vmap(partial(_tempered, least=SHARE * k))(ratios))
        points = mixtures.sample(key, k)
        return (points, mixtures.log_density(points), mixtures), None

    proposed = jnp.broadcast_to(one.log_density(nodes[None]), (n, k))
    (_, _, mixtures), _ = jax.lax.scan(
        step, (points, proposed, first), jax.random.split(key, ROUNDS)
    )
    centers, log_weights, roots = mixtures.centers, mixtures.log_weights, mixtures.roots
    scaled = Mixtures(centers * size[None], log_weights, roots * size[:, :, None])
    return jax.lax.stop_gradient(scaled)


def _around(points: Float[Array, "n k d"], log_weights: Float[Array, "n k"]) -> Mixtures:
    """Return mixtures of Gaussians centred at the points, with Silverman's bandwidth."""
    _, k, d = points.shape
    weights = jnp.exp(log_weights)
    gaps = points - jnp.einsum("nk,nkd->nd", weights, points)[:, None]
    covariances = jnp.einsum("nk,nki,nkj->nij", weights, gaps, gaps)
    bandwidth = (4 / ((d + 2) * k)) ** (1 / (d + 4))
    return Mixtures(points, log_weights, bandwidth * jnp.linalg.cholesky(_ridged(covariances)))


def _tempered(ratios: Float[Array, " k"], *, least: float) -> Float[Array, " k"]:
    """Return normalized log weights c * ``ratios`` + constant, with the largest c <= 1 that gives
    an effective sample size >= ``least``; equal weights if all log ratios are -infinite."""
    top = jnp.max(ratios)
    gaps = jnp.where(top > -jnp.inf, ratios - top, 0)

    def weights(power: Scalar) -> Array:
        powers = jnp.where(gaps > -jnp.inf, power * gaps, -jnp.inf)
        return jax.nn.log_softmax(powers)

    def enough(power: Scalar) -> Array:
        return jnp.sum(jnp.exp(2 * weights(power))) * least <= 1

    one = jnp.ones((), ratios.dtype)
    low, _ = bisected(enough, jnp.zeros_like(one), one, HALVINGS)
    return weights(jnp.where(enough(one), one, low))


def _ridged(covariances: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
    variances = jnp.diagonal(covariances, axis1=1, axis2=2)
    least = jnp.finfo(covariances.dtype).tiny
    extra = at_least(RIDGE * variances, least**0.5)
    return covariances + jax.vmap(jnp.diag)(extra)


def _solve(roots: Float[Array, "n d d"], points: Float[Array, "n m d"]) -> Float[Array, "n m d"]:
    size = binary_size(jnp.diagonal(roots, axis1=1, axis2=2))
    inverse = jnp.linalg.inv(roots / size[:, :, None])
    return jnp.einsum("nij,nmj->nmi", inverse, points / size[:, None])


@runtime_checkable
class Densities(Protocol):
    """Protocol of a function that returns n predictions' log densities and gradients at points."""

    def __call__(
        self, points: Float[Array, "n k d"], /
    ) -> tuple[Float[Array, "n k"], Float[Array, "n k d"]]: ...

    def logs(self, points: Float[Array, "n k d"], /) -> Float[Array, "n k"]:
        """Return the log densities alone."""
        ...


class Candidates(NamedTuple):
    """A target and m points that are exchangeable with it, for each of n predictions.

    Attributes:
        points: Target, first, and then candidates, [n, m + 1, d].
        log_densities: Log density of each, up to one constant per prediction, [n, m + 1].
        weights: Probability under calibration that each is the target, given the set, [n, m + 1];
            rows sum to 1.
        acceptance: Share of accepted moves, []; 1 without a chain.
        gradients: Gradient of the log density at each, [n, m + 1, d], or None. With gradients the
            p-value depends less on the choice of candidates.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> points = jax.random.normal(jax.random.key(0), (100, 20, 1))  # exchangeable
        >>> logs = -points[:, :, 0] ** 2 / 2
        >>> weights = jnp.full((100, 20), 1 / 20)
        >>> candidates = jaxcal.candidates.Candidates(points, logs, weights, jnp.ones(()))
        >>> jaxcal.candidates.ranks(1, candidates).shape
        (100,)
    """

    points: Float[Array, "n k d"]
    log_densities: Float[Array, "n k"]
    weights: Float[Array, "n k"]
    acceptance: Scalar
    gradients: Float[Array, "n k d"] | None = None


@runtime_checkable
class Proposal(Protocol):
    """Protocol of a function that returns `Candidates` of targets ``ys``, in the units of ``ys``.
    Steps may be scaled by ``units`` [n, d, d], matrices that do not depend on targets."""

    def __call__(
        self, key: Key, densities: Densities, ys: Points, units: Float[Array, "n d d"], /
    ) -> Candidates: ...


def _nodes(value: object) -> Any:
    if value is None:
        return None
    nodes = convert.floats(value, "nodes")
    if nodes.ndim != 2:
        raise ValueError(f"nodes: wanted shape [k, d], got {nodes.shape}")
    return nodes


class Chains(eqx.Module):
    r"""Draw candidates by Metropolis-Hastings: one chain from the target, then m from its end.

    A step from y proposes :math:`y + \frac{s^2}{2} M M^\top s_p(y) + s M \xi`. Here :math:`s_p` is
    the score (entries that are not finite count as 0), :math:`\xi` is standard normal, M is the
    scale matrix of the prediction, and the step size s is redrawn for every step, so it needs no
    tuning. Without ``langevin`` the term with the score is omitted. More steps add power and keep
    the level.

    These steps rarely leave a mode. With ``nodes``, half of the proposals are instead draws from a
    Gaussian mixture, so that wrong weights of modes are detected too. The mixture is fitted to the
    log densities of each prediction, starting at the nodes, and never uses a target.

    Args:
        n_candidates: Number m of candidates.
        n_steps: Number of steps in each direction.
        langevin: Whether proposals use the score.
        smallest: Smallest step size s; s is log-uniform.
        largest: Largest step size s.
        nodes: Points [k, d] in the units of the targets, k >= d + 2, that cover the bulk of all
            predictions, such as 128 draws of a prior; None for no jumps.

    Cost per prediction: (m + 1) n_steps + 1 log densities with their gradients, also without
    ``langevin``; 3 k further log densities with nodes.

    Source: Besag and Clifford (1989), Section 2; Roberts and Tweedie (1996) for Langevin
    proposals; Tierney (1994), Section 2.3.3, for independent ones.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, proposal = dist.Normal(centers, 1.0), jaxcal.candidates.Chains(n_steps=5)
        >>> jaxcal.candidates.exchangeability_test(
        ...     1, predictions, centers + 2 * noise, proposal=proposal
        ... ).verdict
        'rejected'
    """

    n_candidates: int = eqx.field(default=19, static=True)
    n_steps: int = eqx.field(default=10, static=True)
    langevin: bool = eqx.field(default=True, static=True)
    smallest: float = eqx.field(default=0.2, static=True)
    largest: float = eqx.field(default=1.5, static=True)
    nodes: Any = eqx.field(default=None, converter=_nodes)

    def __check_init__(self):
        convert.integer(self.n_candidates, "n_candidates")
        convert.integer(self.n_steps, "n_steps")
        low, high = convert.real(self.smallest, "smallest"), convert.real(self.largest, "largest")
        if not 0 < low <= high < float("inf"):
            raise ValueError(
                f"smallest, largest: wanted 0 < smallest <= largest, got {low} and {high}"
            )

    def __call__(self, key, densities, ys, units, /) -> Candidates:
        n, d = ys.shape
        back_key, forward_key = jax.random.split(key)
        start = ys[:, None]
        at_targets = densities(start)
        jumps = None
        if self.nodes is not None:
            if self.nodes.shape[1] != d or len(self.nodes) < d + 2:
                raise ValueError(
                    f"nodes: wanted at least {d + 2} of shape [{d}], got {self.nodes.shape}"
                )
            jumps = fitted(
                jax.random.fold_in(key, 2), densities.logs, self.nodes.astype(ys.dtype), n
            )
        walk = partial(self._walk, densities=densities, units=units, jumps=jumps)
        centre, at_centre, moved_back = walk(back_key, points=start, at_points=at_targets)

        def spread(leaf: Array) -> Array:
            return jnp.broadcast_to(leaf, (n, self.n_candidates, *leaf.shape[2:]))

        ends, at_ends, moved = walk(
            forward_key, points=spread(centre), at_points=jax.tree.map(spread, at_centre)
        )
        logs, gradients = (
            jnp.concatenate(both, axis=1) for both in zip(at_targets, at_ends, strict=True)
        )
        k = self.n_candidates + 1
        return Candidates(
            jnp.concatenate([start, ends], axis=1),
            logs,
            jnp.full_like(logs, 1 / k),
            (moved_back + self.n_candidates * moved) / k,
            gradients,
        )

    def _walk(
        self,
        key: Key,
        *,
        densities: Densities,
        units: Float[Array, "n d d"],
        jumps: Mixtures | None,
        points: Array,
        at_points: PyTree,
    ) -> tuple[Array, PyTree, Scalar]:
        low, high = jnp.log(jnp.asarray([self.smallest, self.largest], points.dtype))
        inverse = jnp.linalg.inv(units)

        def drift(gradients: Array) -> Array:
            if not self.langevin:
                return jnp.zeros_like(gradients)
            # an infinite or missing gradient gives no drift, in either direction of the step
            usable = jnp.where(jnp.isfinite(gradients), gradients, 0)
            return jnp.einsum("nij,nkj->nki", jnp.swapaxes(units, 1, 2), usable)

        def step(t: Array, carry: PyTree) -> PyTree:
            points, (logs, gradients), moved = carry
            step_key = jax.random.fold_in(key, t)
            scale_key, noise_key, accept_key = jax.random.split(step_key, 3)
            shape = (*logs.shape, 1)
            s = jnp.exp(jax.random.uniform(scale_key, shape, points.dtype, low, high))
            noise = jax.random.normal(noise_key, points.shape, points.dtype)
            step_in_units = s**2 / 2 * drift(gradients) + s * noise
            proposed = points + jnp.einsum("nij,nkj->nki", units, step_in_units)
            jumping = jnp.zeros(logs.shape, bool)
            if jumps is not None:
                coin_key, jump_key = jax.random.split(jax.random.fold_in(step_key, 3))
                jumping = jax.random.bernoulli(coin_key, shape=logs.shape)
                drawn = jumps.sample(jump_key, points.shape[1])
                proposed = jnp.where(jumping[:, :, None], drawn, proposed)
            new_logs, new_gradients = densities(proposed)
            there = jnp.einsum("nij,nkj->nki", inverse, points - proposed)
            back = (there - s**2 / 2 * drift(new_gradients)) / s
            of_proposals = jnp.sum(noise**2 - back**2, axis=-1) / 2
            if jumps is not None:
                change = jumps.log_density(points) - jumps.log_density(proposed)
                of_proposals = jnp.where(jumping, change, of_proposals)
            ratio = new_logs - logs + of_proposals
            uniform = jax.random.uniform(accept_key, logs.shape, logs.dtype)
            accepted = jnp.log(uniform) < ratio  # never if a density is 0 or NaN

            def chosen(new: Array, old: Array) -> Array:
                return jnp.where(jnp.expand_dims(accepted, range(2, old.ndim)), new, old)

            now = jax.tree.map(chosen, (new_logs, new_gradients), (logs, gradients))
            return chosen(proposed, points), now, moved + jnp.mean(accepted, dtype=moved.dtype)

        begin = (points, at_points, jnp.zeros((), points.dtype))
        points, at_points, moved = jax.lax.fori_loop(0, self.n_steps, step, begin)
        return points, at_points, moved / self.n_steps


class Drawn(eqx.Module):
    """Take independent draws of the predictions as candidates; they give more power than `Chains`.

    Args:
        draws: m independent draws of each prediction, [n, m, d] or [n, m, ...], which must not
            depend on the target.

    Cost: m + 1 log densities with gradients per prediction.

    Source: Besag and Clifford (1989), Section 2, for a chain that mixes in one step.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> posterior = dist.Normal(jax.numpy.zeros((40, 2)), 1.0).to_event(1)
        >>> draws = jax.random.normal(jax.random.key(0), (40, 99, 2))
        >>> proposal = jaxcal.candidates.Drawn(draws)
        >>> result = jaxcal.candidates.exchangeability_test(
        ...     1, posterior, draws[:, 0] + 3, proposal=proposal
        ... )
        >>> result.verdict
        'rejected'
    """

    draws: Array = eqx.field(converter=lambda value: convert.floats(value, "draws"))

    def __call__(self, key, densities, ys, units, /) -> Candidates:
        n, d = ys.shape
        if self.draws.ndim < 2 or self.draws.shape[0] != n or self.draws[0, 0].size != d:
            raise ValueError(
                f"draws: wanted m draws for each of n={n} targets, shape ({n}, m, {d}), got "
                f"{self.draws.shape}"
            )
        others = self.draws.reshape(n, -1, d).astype(ys.dtype)
        points = jnp.concatenate([ys[:, None], others], axis=1)
        logs, gradients = densities(points)
        same = jnp.full(logs.shape, 1 / logs.shape[1], ys.dtype)
        return Candidates(points, logs, same, jnp.ones((), ys.dtype), gradients)
