"""What other diagnostics say of the same data: p-values from exact draws, or of a known ratio."""

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr

FITTED = 10  # draws a prediction for the classifier
RIDGE = 3.0


def uniform(u: jax.Array) -> jax.Array:
    """The p-value of Kolmogorov and Smirnov, [n] values, by Stephens' finite-n form."""
    n = u.shape[0]
    u, i = jnp.sort(u), jnp.arange(n)
    gap = jnp.maximum(jnp.max((i + 1) / n - u), jnp.max(u - i / n))
    k = jnp.arange(1, 40)
    root = (n**0.5 + 0.12 + 0.11 / n**0.5) * gap
    return jnp.clip(2 * jnp.sum((-1.0) ** (k - 1) * jnp.exp(-2 * (k * root) ** 2)), 0, 1)


def from_draws(key: jax.Array, data) -> jax.Array:
    """p-values of coverage, SBC (Bonferroni) and TARP from the exact draws of the predictions."""
    keys = jax.random.split(key, 4)
    n, m, d = data.draws.shape

    def rank(key, at_target, at_draws):
        below = jnp.sum(at_draws < at_target[:, None], axis=1) + jax.random.uniform(key, (n,))
        return uniform(below / (m + 1))

    ys = data.targets
    coverage = rank(keys[0], data.logs(ys[:, None])[:, 0], data.logs(data.draws))
    each = [rank(jax.random.fold_in(keys[1], j), ys[:, j], data.draws[..., j]) for j in range(d)]
    sbc = jnp.minimum(1, d * jnp.min(jnp.stack(each)))
    low, high = jnp.min(ys, axis=0), jnp.max(ys, axis=0)
    reference = low + (high - low) * jax.random.uniform(keys[2], ys.shape)
    at_target = jnp.linalg.norm(ys - reference, axis=1)
    at_draws = jnp.linalg.norm(data.draws - reference[:, None], axis=2)
    return jnp.stack([coverage, sbc, rank(keys[3], at_target, at_draws)])


def sharing_one_level(key: jax.Array, data) -> jax.Array:
    """p-values of coverage, SBC, TARP, and of the three together (Bonferroni, as SBC over its
    coordinates, which for one verdict on all rejects when Holm does)."""
    p = from_draws(key, data)
    return jnp.append(p, jnp.minimum(1, 3 * jnp.min(p)))


def classifier(data) -> jax.Array:
    """A classifier two-sample test of (input, target) beside (input, draw), as C2ST and LC2ST ask.

    Ridge regression of the label on all products of two standardized values, fitted to one half of
    the observations. On the other half the fitted value at the target less that at the draws of the
    same prediction has mean 0 under calibration: a one-sided t test.
    """
    n, draws = data.targets.shape[0], data.draws[:, :FITTED]
    pairs = jnp.concatenate([data.targets[:, None], draws], axis=1)
    inputs = jnp.broadcast_to(data.inputs[:, None], (*pairs.shape[:2], data.inputs.shape[1]))
    v = jnp.concatenate([inputs, pairs], axis=2)
    v = (v - jnp.mean(v, axis=(0, 1))) / (jnp.std(v, axis=(0, 1)) + 1e-6)
    i, j = jnp.triu_indices(v.shape[2])
    features = jnp.concatenate([v, v[..., i] * v[..., j]], axis=2)
    fit, test = features[: n // 2], features[n // 2 :]
    # targets less draws: what the inputs alone say cancels
    gap = fit[:, 0] - jnp.mean(fit[:, 1:], axis=1)
    scatter = jnp.einsum("nkp,nkq->pq", fit - jnp.mean(fit, axis=(0, 1)), fit) / fit[..., 0].size
    eye = jnp.eye(scatter.shape[0])
    direction = jnp.linalg.solve(scatter + RIDGE / (n // 2) * eye, jnp.mean(gap, axis=0))
    gains = (test[:, 0] - jnp.mean(test[:, 1:], axis=1)) @ direction
    error = jnp.std(gains, ddof=1) / gains.size**0.5
    return 1 - ndtr(jnp.mean(gains) / error)


def best_possible(data) -> jax.Array:
    """The p-value of the likelihood ratio of the actual to the claimed density, which no test of
    this level exceeds in power (Neyman and Pearson): exact, from draws of the predictions."""
    actual = jnp.sum(data.ratios(data.targets[:, None]))
    under_claim = jnp.sum(data.ratios(data.draws), axis=0)
    return (1 + jnp.sum(under_claim >= actual)) / (1 + under_claim.size)
