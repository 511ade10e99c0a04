r"""Estimate squared calibration errors by leaving each row out once, and compute intervals.

Let the columns of Q [n, k] be orthonormal functions of the n predictions p, and D = p - o the
residuals of the outcomes o. The fitted residuals are :math:`\hat r = Q Q^T D`. The estimate is the
mean inner product of D_i with a fit to all rows except i:

.. math:: \hat\theta = \frac1n \sum_i \Big\langle D_i, \frac{\hat r_i - h_i D_i}{1 - h_i}
          \Big\rangle, \qquad h_i = |Q_i|^2,

with max(1 - h_i, 1 / 2) in place of 1 - h_i. If the true residual is a linear combination of the k
functions, the expectation given the predictions is the squared error. For other residuals it is
close to the squared error of the projection, which is smaller. The distribution is about that of a
weighted sum of k centred chi squares near calibration, and normal far from calibration.

The intervals, and the paired test of two risks, are not from Gruber and Bach (2025). Let r* be the
true residual function, and r one that was fitted on other data. Then

.. math:: \psi(p, o) = 2 \langle p - o, r(p)\rangle - |r(p)|^2, \qquad
          E\,\psi = E|r^*|^2 - E|r - r^*|^2

The one-step estimate is the mean of psi over rows. Its expectation is at most the squared error.
Its bias is of second order in r - r*; the bias of the mean of |r|^2 is of first order.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float, Int

from jaxcal.numerics import at_least, full_precision, largest
from jaxcal.read import checks
from jaxcal.results import Interval
from jaxcal.squared_ce.functions import jackknife
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.typing import Scalar


class OneStep(NamedTuple):
    """One-step estimate of the squared error, ``squared`` [], which may be negative.

    ``standard_error`` []: the larger of the sample standard error and that under calibration.
    ``interval``: normal, valid if the squared error of the estimated residual is small against the
    standard error. ``lower_bound`` []: one-sided, of the same confidence, valid for any residual.
    """

    squared: Float[Array, ""]
    standard_error: Float[Array, ""]
    interval: Interval
    lower_bound: Float[Array, ""]


class RiskDifference(NamedTuple):
    """Comparison of the risks of two functions on the same pairs.

    ``difference`` []: first minus second. ``standard_error`` []: by the jackknife. ``p_value`` []:
    one-sided, small if the first risk is lower. ``interval``: two-sided.
    """

    difference: Float[Array, ""]
    standard_error: Float[Array, ""]
    p_value: Float[Array, ""]
    interval: Interval


def one_step_terms(
    residuals: Float[Array, "n d"], estimated: Float[Array, "n d"]
) -> Float[Array, " n"]:
    """Return 2 <D, r> - |r|^2 of each observation with residual D and estimated residual r."""
    return jnp.sum(2 * residuals * estimated - estimated**2, axis=1)


def claimed_parts(
    inputs: Float[Array, "n d"], estimated: Float[Array, "n d"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    r"""Return the mean :math:`\sum_k p_k r_k` and the mean square :math:`\sum_k p_k r_k^2` of the
    estimated residual r, [n] each, if class k has the probability p_k given by ``inputs``."""
    return jnp.sum(inputs * estimated, axis=1), jnp.sum(inputs * estimated**2, axis=1)


def one_step(
    terms: Float[Array, " n"], level: float = 0.05, claimed: Float[Array, " n"] | None = None
) -> OneStep:
    """Return the one-step estimate of the squared error and its intervals from `one_step_terms`.

    ``claimed`` [n]: variances of the terms for calibrated predictions. If given, the standard error
    is at least sqrt(mean(claimed) / n), so that it is not too small if rare outcomes are missing.
    """
    n, mean = terms.shape[0], jnp.mean(terms)
    error = jnp.std(terms, ddof=1) / n**0.5 if n > 1 else jnp.full((), jnp.nan, terms.dtype)
    if claimed is not None:
        error = at_least(error, jnp.sqrt(jnp.mean(claimed) / n))
    half = _normal_quantile(1 - level / 2, error) * error
    interval = Interval(mean - half, mean + half, level)
    return OneStep(mean, error, interval, mean - _normal_quantile(1 - level, error) * error)


def compare_risks(
    first: Float[Array, " n"], second: Float[Array, " n"], level: float = 0.05
) -> RiskDifference:
    """Test whether the first of two functions has the lower risk on the same observations.

    ``first`` and ``second`` [n]: `Risk.rows` of the two. Both functions must be fitted on other
    data. The standard error is the jackknife's for a U-statistic, which is too large if the two
    functions are nearly equal. Identical functions have difference 0 and p = 1 / 2.
    """
    gaps = first - second
    difference, error = jnp.mean(gaps), jackknife(gaps)
    # rounding: row means of equal functions may differ in the last digits
    size = largest(jnp.abs(first))
    same = largest(jnp.abs(gaps)) <= 1e3 * jnp.finfo(gaps.dtype).eps * size
    z = jnp.where(same, 0.0, difference / jnp.where(same, 1.0, error))
    half = _normal_quantile(1 - level / 2, error) * error
    interval = Interval(difference - half, difference + half, level)
    return RiskDifference(difference, error, ndtr(z), interval)


def root(interval: Interval, most: float = np.inf) -> Interval:
    """Return the square roots of an interval's ends, which are first clipped to [0, ``most``]."""
    low, high = (np.sqrt(np.clip(np.asarray(end), 0, most)) for end in interval[:2])
    return Interval(low, high, interval.level)  # pyright: ignore[reportArgumentType]


@jax.jit
def _normal_quantile(probability: float | Scalar, like: Array) -> Scalar:
    return ndtri(jnp.asarray(probability, like.dtype))


POWER, MOST, ALTOGETHER = 0.4, 32, 2048  # n^0.4 functions; limits per class and for all classes
STORED = 2**26  # limit on the number of values of all functions at all rows
POWERS = (0.25, 0.5, 2.0, 4.0)  # powers of probabilities: inverse temperatures
ROUNDING = 1e-10  # eigenvalues up to this count as 0
FEW = 4  # unexpected outcomes, up to which their observed variance is not relied on
ADDED = 2  # outcomes added to the fit, half of them of each class, as by Agresti and Coull (1998)


class Moments(NamedTuple):
    """Terms of the variance and third moment of the estimate if the squared error is t.

    The variance is ``noise`` w^2 + max(``slope``, ``least(t)``) t + ``rows``. The third moment is
    ``noise3`` w^3 + max(``slope3``, 1.5 ``least(t)``^2) t. ``rows`` is the part due to sampled
    predictions. ``least`` is 0 unless few outcomes are unexpected. The factor w rises from 1 at
    t = 0 to ``excess`` >= 1, the variance of outcomes divided by the variance under calibration.
    """

    noise: float
    slope: float
    rows: float
    noise3: float
    slope3: float
    excess: float = 1.0
    least: Callable[[float], float] = lambda truth: 0.0


class LeaveOneOut(eqx.Module):
    """Estimated calibration error, its square and its interval, from `leave_one_out`.

    Attributes:
        squared: Estimate of the squared error; negative in about half of the data sets with
            calibrated predictions.
        error: Root of ``squared``, clipped to [0, 1] for single probabilities, else to [0, 2^1/2].
        interval: Interval of the calibration error, clipped in the same way.
        functions: Number of functions of the predictions that are fitted to each class's residuals.
    """

    squared: float
    error: float
    interval: Interval
    functions: int = eqx.field(static=True)


@full_precision
def leave_one_out(problem: Reduced, *, level: float = 0.05) -> LeaveOneOut:
    r"""Estimate a calibration error from every row, with an interval that is valid near zero too.

    The residual at each row is compared with a fit to all other rows: a projection on functions of
    the predictions. For scalar problems the functions are :math:`n^{2/5}` (at most 32) cosines of
    the ranks of p. For probability vectors, each of m classes has its own functions, the first
    n / 4 of this list: a constant, the probability q of the class, q at the temperatures 1/4, 1/2,
    2 and 4, the other probabilities, their products with q, and about :math:`n^{2/5} / 2` cosines
    of the rank of each probability. A class has at most 2048 / m functions, and at most
    2^26 / (n m) if this exceeds 2, else 2. If these limits leave a scalar problem fewer cosines, p
    replaces the last cosine. Residuals that no combination of the functions fits are missed.
    The interval consists of the errors that a test does not reject. Near zero the test is one-sided
    and rejects only large estimates; for large errors it has two equal tails. If fewer than about
    four outcomes are unexpected, such as wrong labels where p is 1, the test uses at least the
    variance of outcomes that have the tested error.

    Args:
        problem: Predictions and outcomes from `reduce`: at least 4 rows, at most 1024 classes.
        level: The interval has confidence 1 - ``level``.

    Returns:
        `LeaveOneOut`, with ``squared``, ``error``, ``interval`` and ``functions``.

    Cost: O(n m^2 k^2) for m classes and k functions; memory O(n m k).

    Source: Bickel and Ritov (1988) for the one-step correction; Feldman and Cousins (1998) for the
    unified tails.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> p = jnp.linspace(0.05, 0.95, 200)
        >>> targets = jax.random.bernoulli(jax.random.key(0), p)
        >>> problem = jaxcal.squared_ce.reduce(p, targets, "binary")
        >>> float(jaxcal.squared_ce.leave_one_out(problem).interval.low)  # calibrated
        0.0
    """
    checks.instance(problem, Reduced, "problem")
    level = checks.level(level)
    if problem.n < 4:
        raise ValueError(f"problem: wanted at least 4 rows, got {problem.n}")
    with jax.enable_x64(True):
        inputs, residuals = np.asarray(problem.inputs, float), np.asarray(problem.residuals, float)
    if inputs.ndim == 3:  # a scalar problem per class
        inputs, residuals = inputs[..., 0].T, residuals[..., 0].T
    if (m := inputs.shape[1]) > (limit := ALTOGETHER // 2):
        raise ValueError(f'predictions: wanted <= {limit} classes, got {m}: notion="top-label"?')
    scalar = problem.inputs.shape[-1] == 1
    if scalar:
        q = np.stack([_of_ranks(c, _functions(*inputs.shape)) for c in inputs.T], axis=1)
    else:
        q = _of_vectors(inputs)
    squared, moments = _estimate(inputs, residuals, q)
    # two probability vectors have |p - q|^2 <= 2
    most = 1.0 if scalar and problem.inputs.ndim == 2 else 2.0
    low, high = accepted(squared, moments, level, most)
    if np.sum(np.abs(residuals)) < 1:  # nothing unexpected: a few alike rows may err
        alike = np.maximum(np.sum(q**2, axis=2), 1e-300)  # 1 / number of such rows
        high = max(high, float(np.max((1 - level**alike) ** 2 / alike)) * most / problem.n)
    error = float(np.sqrt(np.clip(squared, 0, most)))
    interval = Interval(np.asarray(low), np.asarray(high), level)  # pyright: ignore[reportArgumentType]
    return LeaveOneOut(squared, error, root(interval, most), q.shape[-1])


def _functions(n: int, m: int, most: int | None = None) -> int:
    most = min(int(n**POWER), MOST) if most is None else most
    return max(min(most, ALTOGETHER // m, max(STORED // (n * m), 2)), 1)  # a constant misses most


def _of_ranks(confidences: Float[np.ndarray, " n"], k: int) -> Float[np.ndarray, "n k"]:
    """Return k orthonormal cosines of the ranks of confidences. If 1 < k < min(n^0.4, 32),
    confidences replace the last. Columns beyond the number of distinct values are 0."""
    columns = _cosines(confidences, np.arange(k))
    if 1 < k < min(int(confidences.size**POWER), MOST):
        columns[:, -1] = confidences
    return _orthonormal(columns)


def _cosines(
    confidences: Float[np.ndarray, " n"], frequencies: Int[np.ndarray, " k"]
) -> Float[np.ndarray, "n k"]:
    _, which, counts = np.unique(confidences, return_inverse=True, return_counts=True)
    places = ((np.cumsum(counts) - counts / 2) / confidences.size)[which]
    return np.cos(np.pi * places[:, None] * frequencies)


def _of_vectors(p: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n m k"]:
    """Return k orthonormal functions of the n rows of p for each class; see `leave_one_out`."""
    from scipy.special import softmax

    n, m = p.shape
    most = _functions(n, m, n // 4)
    logs = np.log(np.maximum(p, 1e-300)).astype(float)
    tempered = np.stack([softmax(power * logs, axis=1) for power in POWERS[:most]], axis=-1)
    waves = np.arange(1, max(int(n**POWER) // 2, 2))[:most]
    cosines = [_cosines(c, waves) for c in p.T[: most + 1]]
    functions = []
    for j in range(m):
        near = [other for other in range(m) if other != j][:most]
        column, others = p[:, [j]], p[:, near]
        columns = [np.ones((n, 1)), column, tempered[:, j], others, column * others]
        columns += [_cosines(p[:, j], waves), *(cosines[other] for other in near)]
        functions.append(_orthonormal(np.hstack(columns)[:, :most]))
    return np.stack(functions, axis=1)


def _orthonormal(columns: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    scaled = columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    values, vectors = np.linalg.eigh(scaled.T @ scaled)
    inverse = np.where(values > ROUNDING, 1 / np.sqrt(np.maximum(values, ROUNDING)), 0.0)
    return scaled @ (vectors * inverse)


def _estimate(
    p: Float[np.ndarray, "n m"], residuals: Float[np.ndarray, "n m"], q: Float[np.ndarray, "n m k"]
) -> tuple[float, Moments]:
    """Return the leave-one-out estimate with functions q, and the moments of its distribution."""
    n, m, k = q.shape
    total = np.einsum("nmk,nm->mk", q, residuals)
    fit = np.einsum("nmk,mk->nm", q, total)
    leverage = np.sum(q**2, axis=2)
    others = np.maximum(1 - leverage, 0.5)  # a value of a single row has leverage 1
    squared = np.sum(residuals * (fit - leverage * residuals) / others) / n
    # covariance of Q^T o for calibrated predictions, where that of o is diag(p) - p p^T per row
    weighted = (p[..., None] * q).reshape(n, m * k)
    covariance = -weighted.T @ weighted
    for j in range(m):
        block = slice(j * k, (j + 1) * k)
        covariance[block, block] += q[:, j].T @ (p[:, j, None] * q[:, j])
    square = covariance @ covariance
    # factor for the omitted products of a row with itself, and for the division by 1 - leverage
    pairs = np.mean(1 / others) ** 2 * (1 - np.sum(leverage**2) / np.sum(leverage))
    # observed noise around the fit, plus noise under calibration for the part that the fit absorbed
    observed = np.sum(fit * (residuals - fit), axis=1) ** 2
    claimed = _variances(p, fit)
    along = np.sum(observed + np.mean(leverage, axis=1) * claimed) / max(np.sum(total**2), 1e-300)
    of_rows = np.var(np.sum(fit**2, axis=1)) / n
    of_outcomes = (residuals - fit) ** 2 + leverage * p * (1 - p)
    spread = np.sum(leverage * p * (1 - p))
    excess = np.sum(leverage * of_outcomes) / spread if spread > 0 else 1.0
    few = np.sum((residuals - fit) ** 2) < FEW * min(m, 2)  # one in a vector differs by 2
    least = {"least": _implied(p, fit)} if few else {}
    return float(squared), Moments(
        noise=float(2 * pairs * np.sum(covariance**2) / n**2),
        slope=float(4 * along / n),
        rows=float(of_rows),
        noise3=float(8 * pairs**1.5 * np.sum(square * covariance) / n**3),
        slope3=float(24 * along**2 / n**2),
        excess=max(float(excess), 1.0),
        **least,
    )


def _variances(
    rates: Float[np.ndarray, "n m"], values: Float[np.ndarray, "n m"]
) -> Float[np.ndarray, " n"]:
    """Return the variance of ``values[i, k]`` for each i, if k is drawn with ``rates[i, k]``."""
    return np.sum(rates * values**2, axis=1) - np.sum(rates * values, axis=1) ** 2


def _implied(
    p: Float[np.ndarray, "n m"], fit: Float[np.ndarray, "n m"]
) -> Callable[[float], float]:
    """Return the function ``least(t)`` of `Moments`: 4 / (n t) times the mean variance of <o, r>.

    The outcomes o have the rates p - r. The residual r has mean square t. It is proportional to
    ``fit`` plus a small multiple of p - 1 / m, because ``fit`` may be 0."""
    n, m = p.shape
    toward = fit + ADDED / n * (p - 1 / max(m, 2))
    toward = toward / max(np.mean(np.sum(toward**2, axis=1)) ** 0.5, 1e-300)

    def least(truth: float) -> float:
        rates = np.clip(p - toward * truth**0.5, 0, 1)
        return float(4 * np.mean(np.maximum(_variances(rates, toward), 0)) / n)

    return least


def accepted(squared: float, moments: Moments, level: float, most: float) -> tuple[float, float]:
    """Return the ends of the interval in [0, ``most``] of squared errors that a test accepts.

    ``squared`` is the estimate, and ``moments`` are its moments. The upper end is that of
    max(``squared``, 0), because a negative estimate might reject every error.
    """
    from scipy import special

    def tails(truth: float, squared: float) -> tuple[float, float, float]:
        """Return P(estimate <= squared) and P(estimate >= squared) if the true squared error is
        ``truth``, and the share of ``level`` used for the lower tail."""
        at_zero = moments.noise + moments.rows
        away = -np.expm1(-(truth**2) / at_zero) if at_zero > 0 else 1.0
        wider = 1 + away * (moments.excess - 1)
        least = moments.least(truth)
        slope, slope3 = max(moments.slope, least), max(moments.slope3, 1.5 * least**2)
        variance = moments.noise * wider**2 + slope * truth + moments.rows
        below = level / 2 * away
        if variance <= 0:
            return float(squared >= truth), float(squared <= truth), below
        third = moments.noise3 * wider**3 + slope3 * truth
        # shape of the gamma distribution with this skewness
        shape = 4 * variance**3 / max(third, 1e-4 * variance**1.5) ** 2
        at = max(shape + (squared - truth) * (shape / variance) ** 0.5, 0.0)
        return float(special.gammainc(shape, at)), float(special.gammaincc(shape, at)), below

    def rejected_low(truth: float) -> bool:
        _, as_high, below = tails(truth, squared)
        return bool(as_high <= level - below)

    def rejected_high(truth: float) -> bool:
        as_low, _, below = tails(truth, max(squared, 0.0))
        return bool(as_low < below)

    return (
        _last(rejected_low, most) if rejected_low(0.0) else 0.0,
        most if not rejected_high(most) else _last(lambda truth: not rejected_high(truth), most),
    )


def _last(holds: Callable[[float], bool], most: float) -> float:
    """Return, by bisection, the largest x <= ``most`` with ``holds`` true on [0, x]; 0 if none."""
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
