r"""Estimate squared calibration errors in units of probability.

The residuals :math:`d_i = e_{y_i} - q_i` are regressed on the predictions. The basis of the
regression is a constant and the leading principal components of the predictions: orthonormal
columns F [n, r], with leverages :math:`h_i = \|F_i\|^2`. The squared error is
:math:`T = E\|f(q)\|^2`, where f is the population regression. Its estimate leaves out the products
of an observation with itself,

.. math:: U = \sum_{i \ne j} a_i^\top a_j, \qquad
          a_i = \frac{F_i \otimes d_i}{\sqrt{n (1 - h_i)}},

so that U has mean 0 for a calibrated model. With the factor :math:`1 - h_i`, U is the
leave-one-out estimate. Its mean is T if E[d | q] is linear in q and all leverages are equal. With
:math:`f_i = f(q_i)`, the first influence function of U (see `jaxcal.ckce.errors`) is

.. math:: l_i = \tfrac1n (2 \langle f_i, d_i\rangle - \|f_i\|^2 - T),

and the second, b, is like a but with the residuals of the fit in place of d. The code halves all
squared errors. So for two classes T is the squared error of the probability, and T is at most 1.

Predictions other than class probabilities are compared by ranks. Under calibration the rank r of a
target among draws of its prediction is uniform given the prediction, so the event "y is at most the
t-quantile" has probability t. The residuals :math:`1\{r \le t\} - t`, at ten levels t for each
coordinate, are regressed on the predicted centre and log scale. `jaxcal.entries` takes ranks among
draws or, for unnormalized densities, among weighted points. Both kinds of ranks are uniform.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.ckce.any_predictions import floating, log_scores
from jaxcal.ckce.errors import (
    ADDED,
    Error,
    added_residuals,
    judged,
    redrawn_residuals,
    without_diagonal,
)
from jaxcal.ckce.expansion import Noise, draws, summed
from jaxcal.ckce.inputs import n_components, standardized
from jaxcal.ckce.results import Covered, Says
from jaxcal.ckce.solvers import TILE, normal_equations
from jaxcal.entries.moments import features_of
from jaxcal.entries.ranks import Ranked, seen
from jaxcal.numerics import at_least, at_most
from jaxcal.read import Draws, Scores, Standardized, Units, Unnormalized, checks
from jaxcal.read.observations import n_repeated, observations
from jaxcal.results.notes import memory
from jaxcal.typing import ArrayLike, Contents, Key, PredictionsLike, Scalar


class Basis(NamedTuple):
    """Regressors: a constant and linear functions of predictions, orthonormal over observations."""

    constant: Scalar
    mean: Float[Array, " m"]
    directions: Float[Array, "m s"]

    @classmethod
    def of(
        cls,
        total: Scalar,
        mean: Float[Array, " m"],
        principal: tuple[Float[Array, " m"], Float[Array, "m m"]],
        components: int,
        eps: float,
    ) -> "Basis":
        """Return the basis with ``components`` columns from moments of the predictions.

        ``total``: sum of weights. ``principal``: eigenvalues, ascending, and eigenvectors of the
        covariance. Columns whose deviation is below 100 ``eps`` are 0.
        """
        variances, directions = principal
        variances = variances[::-1][: components - 1]
        some = variances > (100 * eps) ** 2
        scale = jnp.where(some, 1 / jnp.sqrt(total * jnp.where(some, variances, 1)), 0)
        directions = directions[:, ::-1][:, : components - 1] * scale[None]
        return cls(1 / jnp.sqrt(total), mean, directions)

    def __call__(self, q: Float[Array, "n m"]) -> Float[Array, "n r"]:
        moving = (q - self.mean[None]) @ self.directions
        return jnp.concatenate([jnp.full((len(q), 1), self.constant), moving], axis=1)


def basis(q: Float[Array, "n m"], weights: Float[Array, " n"], components: int) -> Basis:
    """Return the basis for the predictions with positive weight.

    Eigenvalues have errors of eps times the largest, plus the squared error e^2 of the mean. If a
    kept eigenvalue is below 100 eps times the largest, or below 10,000 e^2, the decomposition is
    repeated with a corrected mean, after each principal component is scaled to deviation 1.
    """
    total, eps = jnp.sum(weights), float(jnp.finfo(q.dtype).eps)
    mean = weights @ q / total
    centred = (q - mean[None]) * weights[:, None]
    covariance, shift = centred.T @ centred / total, weights @ centred / total
    variances, axes = jnp.linalg.eigh(covariance)

    def once() -> Basis:
        return Basis.of(total, mean, (variances, axes), components, eps)

    def again() -> Basis:
        units = axes / jnp.sqrt(at_least(variances, 100 * eps * at_least(variances[-1], 1)))[None]
        middle = mean + shift
        scaled = ((q - middle[None]) * weights[:, None]) @ units
        # a deviation of 100 eps has a variance of 100 eps in these units
        principal = jnp.linalg.eigh(scaled.T @ scaled / total)
        of = Basis.of(total, middle, principal, components, eps**0.5 / 10)
        return of._replace(directions=units @ of.directions)

    kept = at_most(jnp.sum(jnp.diagonal(covariance) > (100 * eps) ** 2), components - 1)
    least = at_least(100 * eps * variances[-1], 1e4 * jnp.sum(shift**2))
    return jax.lax.cond(variances[-kept] < least, again, once)


class Probability(eqx.Module):
    """The measure "probability" of class probabilities, a regression of residuals on a `Basis`.

    ``rank``: number of columns of the basis. ``variables``: further regressors, or None.
    ``largest``: upper bound of the squared error.
    Cost O(n m (rank + m)) and n_draws min(n, 1024) rank m multiplications, memory O(n m).
    """

    largest: ClassVar[float] = 1.0
    rank: int = eqx.field(static=True)
    variables: Float[Array, "n a"] | None = None

    def __call__(
        self,
        key: Key,
        signs_key: Key,
        q: Float[Array, "n m"],
        weights: Float[Array, " n"],
        labels: Int[Array, " n"],
        n_draws: int,
    ) -> tuple[Error, dict[str, Array]]:
        """Return the error of one model, from the observations of weight 1, and an empty dict."""
        deal_key, noise_key, null_key = jax.random.split(key, 3)
        n, m = q.shape
        added = added_residuals(noise_key, n, m, jnp.sum(weights))
        noise = Noise(added, partial(redrawn_residuals, q=q))
        d = jax.nn.one_hot(labels, m, dtype=q.dtype) - q
        keys = (deal_key, null_key, signs_key)
        x = q if self.variables is None else jnp.concatenate([q, self.variables], axis=1)
        error = by_regression(keys, x, weights, d, noise, 1 / m, self.rank, n_draws)
        return error._replace(nonfinite=jnp.sum(jnp.any(~jnp.isfinite(q), axis=1))), {}


def by_regression(
    keys: tuple[Key, Key, Key],
    x: Float[Array, "n s"],
    weights: Float[Array, " n"],
    d: Float[Array, "n p"],
    noise: Noise,
    variance: float,
    rank: int,
    n_draws: int,
) -> Error:
    """Return the error from the regression of residuals d on functions x of the predictions.

    ``weights`` are 0 or 1. ``keys``: for blocks, drawn residuals and signs. ``variance``: of u . r,
    with u a unit vector, r a residual of a uniform label or rank. ``rank``: columns of the `Basis`.
    """
    deal_key, null_key, signs_key = keys
    total = jnp.sum(weights)
    functions = basis(x, weights, rank)

    def columns(x: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
        """Return F, h, 1 / (1 - h) (at most 4), and F / sqrt(2 n (1 - h)), n the sum of weights."""
        f = functions(x) * weight[:, None]
        leverage = jnp.sum(f**2, axis=1)
        inflation = 1 / at_least(1 - leverage, 0.25)
        return f, leverage, inflation, f * jnp.sqrt(inflation / (2 * total))[:, None]

    def both(x: Array) -> Array:
        f, _, _, pulled = columns(x, jnp.ones(len(x), x.dtype))
        return jnp.concatenate([f, pulled], axis=1)

    moments = normal_equations(both, x, d, weights, side=min(len(x), TILE)).moments
    coefficients, sums = jnp.split(moments, 2)

    def parts(x: Array, d: Array, added: Array, weight: Array) -> tuple[Array, ...]:
        """Return w and e, with the vectors b_i = w_i e_i^T (e includes ``added``); the first
        influence of the data; the first influence of ``added``; squared norms of a; squared norms
        of b; weights."""
        f, leverage, inflation, pulled = columns(x, weight)
        fitted = f @ coefficients
        without = (fitted - leverage[:, None] * d) * inflation[:, None]
        e = (d - fitted) * jnp.sqrt(inflation)[:, None] + added
        first = 2 * jnp.sum(without * d, axis=1) - jnp.sum(without**2, axis=1)
        sizes = jnp.sum(pulled**2, axis=1)
        alone = (sizes * jnp.sum(a**2, axis=1) for a in (d, e))
        firsts = (a * weight / (2 * total) for a in (first, 2 * jnp.sum(without * added, axis=1)))
        return pulled, e, *firsts, *alone, weight

    rows = x, d, noise.added, weights
    of_each, second, null = summed((deal_key, null_key), parts, rows, noise.drawn, n_draws)
    first, of_noise, alone, alone_with_noise, sizes = of_each
    estimate = jnp.sum(sums**2)
    value = estimate - jnp.sum(alone)
    first, of_noise = (a - jnp.sum(a) * sizes / total for a in (first, of_noise))
    second = without_diagonal(second)
    of_added = 2 * variance * ADDED / (total * (total + ADDED))
    per_value = slope(value, first, second, jnp.sum(alone_with_noise)) + of_added
    terms = draws(jax.random.rademacher(signs_key, (n_draws, len(first)), d.dtype), second)
    first = first + unseen(jnp.sum(weights[:, None] * d**2), coefficients) * of_noise
    return Error(estimate, value, per_value, first, second, terms, null, jnp.zeros((), jnp.int32))


def unseen(square: Scalar, coefficients: Float[Array, "r p"]) -> Scalar:
    """Return the factor of the added residuals in the first sum: sqrt(2) if the fit leaves no
    residuals, as when all labels are equal, else 0. ``square``: sum of squares before the fit."""
    left = square - jnp.sum(coefficients**2)
    return jnp.where(left <= 100 * jnp.finfo(left.dtype).eps * square, 2**0.5, 0.0)


def slope(
    value: Scalar, first: Float[Array, " k"], second: Float[Array, "k k"], alone: Scalar
) -> Scalar:
    r"""Return the slope s: the sum over ``first`` has variance s T if the true value is T.

    Let Q and N / 4 be the sums of squares of ``first`` and ``second``. Q has mean s T + N, where N
    is due to label noise. The result is a weighted mean of two estimates of s: (Q - N) / T, with
    weight T = ``value``, and N / ``alone``, with weight :math:`\sqrt{2 N}` (two standard errors of
    ``value`` if T = 0). ``alone``: sum of the products of observations with themselves.
    """
    noise, true = 4 * jnp.sum(second**2), at_least(value, 0)
    weight = jnp.sqrt(2 * noise)
    of_noise = noise / jnp.where(alone > 0, alone, 1)
    excess = at_least(jnp.sum(first**2) - noise, 0)
    return (excess + weight * of_noise) / jnp.where(weight + true > 0, weight + true, 1)


def says(q: Float[Array, "n m"], labels: Int[Array, " n"], weights: Float[Array, " n"]) -> Says:
    """Return `Says`: for each class, its mean probability minus and plus one standard deviation,
    and its frequency at these two probabilities, by linear regression."""
    total = jnp.sum(weights)
    y = jax.nn.one_hot(labels, q.shape[1], dtype=q.dtype)
    mean, occurs = weights @ q / total, weights @ y / total
    # less the square of the error of the mean
    variance = weights @ (q - mean[None]) ** 2 / total - (weights @ (q - mean[None]) / total) ** 2
    covariance = weights @ ((q - mean[None]) * (y - occurs[None])) / total
    return said(mean, occurs, variance, covariance, float(jnp.finfo(q.dtype).eps))


def said(
    mean: Float[Array, " m"],
    occurs: Float[Array, " m"],
    variance: Float[Array, " m"],
    covariance: Float[Array, " m"],
    eps: float,
) -> Says:
    """Return `says` from moments of each class: ``mean`` and ``variance`` of its probability, its
    frequency ``occurs``, and their ``covariance``. Deviations below 100 ``eps`` count as 0."""
    some = variance > (100 * eps) ** 2
    steepness = jnp.where(some, covariance / jnp.where(some, variance, 1), 0)
    deviation = jnp.where(some, jnp.sqrt(at_least(variance, 0)), 0)
    ends = jnp.stack([-deviation, deviation], axis=1)
    low_and_high = jnp.clip(mean[:, None] + ends, 0, 1)
    true = jnp.clip(occurs[:, None] + steepness[:, None] * (low_and_high - mean[:, None]), 0, 1)
    return Says(low_and_high, true)


LEVELS = np.arange(0.05, 1, 0.1)
CENTRAL = 0.9  # probability of the intervals whose coverage the report shows

# functions of ranks, [n, p], and the ranks t at which they change, [p]
Events: TypeAlias = tuple[Float[Array, "n p"], Float[Array, " p"]]


def ready(
    names: tuple[str, ...], models: list[PredictionsLike], targets: ArrayLike, *, least: int = 3
) -> tuple[list[PredictionsLike], Array, list[Array]]:
    """Return checked models, at least ``least`` targets, and correlations of successive draws of
    each model (0 unless it is a `Draws`). Correlated draws are thinned; errors name the model."""
    checked, ys, lags = [], jnp.zeros(0), []
    for name, model in zip(names, models, strict=True):
        try:
            if isinstance(model, Scores):
                raise TypeError(
                    "scores alone give no ranks of the targets, which errors in units of "
                    'probability need: pass the density, or take measure="ckce"'
                )
            if isinstance(model, Unnormalized):
                ys = checks.targets(targets, least=min(least, 2))
                model = checks.predictions(model, ys)
            else:
                model, ys = observations(model, targets, least=min(least, 2))
        except (TypeError, ValueError) as error:
            raise type(error)(f"models[{name}]: {error}") from None
        one, lag = model.thinned() if isinstance(model, Draws) else (model, jnp.zeros(()))
        checked.append(one)
        lags.append(lag)
    if len(ys) < least:
        raise ValueError(f"targets: comparing needs at least {least} observations, got n={len(ys)}")
    return checked, ys, lags


def compared(
    key: Key,
    names: tuple[str, ...],
    models: list[PredictionsLike],
    targets: ArrayLike,
    n_draws: int,
    level: float,
    given: ArrayLike | None,
) -> Contents:
    """Return the fields of a `Comparison` by ranks; the arguments are those of `jaxcal.compare`."""
    models, ys, lags = ready(names, models, targets)
    errors_key, draws_key = jax.random.split(key)
    keys, z = (errors_key, draws_key), standardized(given, len(ys), floating(ys))
    each = [_error(keys, model, ys, z, n_draws) for model in models]
    errors, (hit, lower, memories) = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    covered = Covered(hit, lower, jnp.stack([lag.astype(hit.dtype) for lag in lags]))
    others = {"covered": covered, "skill": log_scores(models, ys), "n": len(ys)}
    others["repeated"] = n_repeated(ys, models[0])
    return judged(draws_key, errors, level, 1.0) | others | {"memory": memories}


@partial(jax.jit, static_argnames="n_draws")
def _error(
    keys: tuple[Key, Key], predictions: Any, ys: Array, variables: Array | None, n_draws: int
) -> tuple[Error, tuple[Array, Array, Array]]:
    ranks_key, deal_key, noise_key, null_key = jax.random.split(keys[0], 4)
    n = len(ys)
    raw = ys.reshape(n, -1)
    units = Units.of(raw)
    near = seen(ranks_key, Standardized(predictions, units, ys.shape[1:]), units.points(raw), ys)
    ranks = near.ranks.coordinates
    nonfinite = ~jnp.all(jnp.isfinite(raw) & jnp.isfinite(ranks), axis=1)
    d = extrapolated(residuals, near.ranks)
    uniform, _ = residuals(jax.random.uniform(noise_key, ranks.shape, ranks.dtype))

    def signed(key: Key) -> Array:
        return jax.random.rademacher(key, (n, 1), dtype=d.dtype) * d

    further = jnp.zeros((n, 0), d.dtype) if variables is None else variables
    features = jnp.concatenate([*features_of(near), further], axis=1)
    rank = n_components(n, features.shape[1] + 1, further.shape[1])
    # of uniform ranks along their leading component, which most errors have
    variance = 2 / (np.pi**2 * ranks.shape[1])
    noise = Noise(np.sqrt(ADDED / (n + ADDED)) * uniform, signed)
    ones = jnp.ones(n, d.dtype)
    keys_of_draws = (deal_key, null_key, keys[1])
    error = by_regression(keys_of_draws, features, ones, d, noise, variance, rank, n_draws)
    hit, lower = (jnp.mean(extrapolated(event, near.ranks), axis=0) for event in (inside, below))
    shares = jnp.clip(hit, 0, 1), jnp.clip(lower, 0, 1), memory(d, raw)
    return error._replace(nonfinite=jnp.sum(nonfinite)), shares


def extrapolated(at: Callable[[Array], Events], ranks: Ranked) -> Float[Array, "n p"]:
    """Return values of ``at``, such as `residuals`, extrapolated to infinitely many points.

    Ranks among m points have a bias of O(1 / m), by which wrong predictions look less wrong. Half
    of the points give twice this bias. So 2 at(ranks) minus the mean of ``at`` over both halves has
    bias O(m^-2). At levels too near 0 or 1 for m / 2 points, the result is at(ranks).
    """
    plain, levels = at(ranks.coordinates)
    halves = (at(ranks.halves[:, 0])[0] + at(ranks.halves[:, 1])[0]) / 2
    fine = jnp.minimum(levels, 1 - levels)[None] >= 2 * ranks.grain[:, None]
    return jnp.where(fine, 2 * plain - halves, plain)


def inside(ranks: Float[Array, "n d"]) -> Events:
    """Return whether ranks are in [.05, .95], [n, d], and the probability .05 of each tail, [d]."""
    d = ranks.shape[1]
    within = jnp.abs(ranks - 0.5) <= CENTRAL / 2
    return within.astype(ranks.dtype), jnp.full(d, (1 - CENTRAL) / 2, ranks.dtype)


def below(ranks: Float[Array, "n d"]) -> Events:
    """Return `Events`, whether ranks are below the median, [n, d], and the level 1/2, [d]."""
    return (ranks < 0.5).astype(ranks.dtype), jnp.full(ranks.shape[1], 0.5, ranks.dtype)


def residuals(ranks: Float[Array, "n d"]) -> Events:
    """Return `Events`: residuals 1{r <= t} - t of ranks r, times sqrt(2 / p), [n, p], and t, [p].
    The p columns are all pairs of a coordinate and a level t of `LEVELS`."""
    levels = jnp.asarray(LEVELS, ranks.dtype)[None, None]
    gaps = (ranks[:, :, None] <= levels).astype(ranks.dtype) - levels
    n, d = ranks.shape
    scale = np.sqrt(2 / (levels.size * d))
    return gaps.reshape(n, -1) * scale, jnp.tile(levels[0, 0], d)
