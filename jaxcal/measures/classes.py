"""Compare confidences with observed frequencies: reliability diagrams and ECE."""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxcal.numerics import group_sums, largest
from jaxcal.read import checks, convert
from jaxcal.results import Result, Sentences, counted, recorded, rows_in_one_order
from jaxcal.typing import ArrayLike, Scalar

Z = 1.959963984540054  # P(|normal variable| <= Z) = .95


class Reliability(Result):
    """Mean confidences and observed frequencies of n cases in b bins; NaN in empty bins.

    Attributes:
        edges: Edges of the bins, [b + 1].
        confidence: Mean confidence in each bin, [b].
        accuracy: Observed frequency in each bin, [b].
        count: Number of observations in each bin, [b].
        low: Lower end of the 95 % interval of Wilson (1927) for the frequency, [b].
        high: Upper end of this interval, [b].
        ece: Mean of abs(accuracy - confidence) over bins, weighted by ``count``, []; biased upwards
            if bins have few observations.
        mce: Largest abs(accuracy - confidence) over bins, []; biased upwards for the same reason.
    """

    _rows: ClassVar[tuple[str, ...]] = ("confidence", "accuracy", "count", "low", "high")
    _plots: ClassVar[tuple[str, ...]] = ("reliability.reliability",)
    _scalar: ClassVar[str] = "ece"

    edges: Float[Array, " b1"]
    confidence: Float[Array, " b"]
    accuracy: Float[Array, " b"]
    count: Int[Array, " b"]
    low: Float[Array, " b"]
    high: Float[Array, " b"]
    ece: Scalar
    mce: Scalar

    @property
    def filled(self) -> Bool[Array, " b"]:
        """Whether each bin has an observation, [b]."""
        return self.count > 0

    def _sentences(self) -> Sentences:
        count = np.asarray(self.count)
        few = int(np.sum((count > 0) & (count < 10)))
        words = counted("{} {bin holds|bins hold} fewer than 10 observations [few-in-bins]", few)
        return [(words, few > 0)]

    def _batch_lines(self) -> list[str]:
        return [f"{np.size(self.ece)} reliability diagrams of {self.count.shape[-1]} bins"]

    def _lines(self) -> list[str]:
        lines = [
            f"reliability, n = {int(np.sum(np.asarray(self.count)))}, ECE {float(self.ece):.4g}, "
            f"MCE {float(self.mce):.4g}",
            "  confidence   came true   95 % interval      count",
        ]
        columns = (self.confidence, self.accuracy, self.low, self.high, self.count)
        for c, a, low, high, k in zip(*(np.asarray(x) for x in columns), strict=True):
            if k:
                lines.append(f"  {c:10.3f}   {a:9.3f}   [{low:.3f}, {high:.3f}]   {k:8d}")
        return lines


@recorded
def reliability(
    confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15, equal_mass: bool = False
) -> Reliability:
    """Compare n confidences in [0, 1] with observed frequencies, in bins.

    A confidence on an edge belongs to the bin above it; the last bin includes its upper edge.

    Args:
        confidence: Probability of class 1, or of the predicted class (see `confidences`), [n].
        correct: Whether the class occurred: booleans, or 0 and 1, [n].
        bins: Number of bins.
        equal_mass: Whether bins have equal numbers of observations instead of equal widths.

    Returns:
        `Reliability`.

    Cost: O(n log bins), with ``equal_mass`` O(n log n).

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> confidence, correct = jnp.full(20, 0.75), jnp.arange(20) < 10
        >>> float(jaxcal.measures.reliability(confidence, correct).accuracy[11])  # 11/15 <= .75
        0.5
    """
    c = checks.unit(confidence, "confidence")
    hits = checks.labels(correct, c.shape[0], 2, "correct").astype(c.dtype)
    equal_mass = convert.flag(equal_mass, "equal_mass")
    return _binned(c, hits, convert.integer(bins, "bins"), equal_mass)


@partial(jax.jit, static_argnums=(2, 3))
def _binned(
    c: Float[Array, " n"], hits: Float[Array, " n"], bins: int, equal_mass: bool
) -> Reliability:
    edges = jnp.asarray(np.arange(bins + 1) / bins, c.dtype)  # linspace rounds some up
    if equal_mass:
        edges = jnp.quantile(c, edges).at[0].set(0).at[-1].set(1)
    index = jnp.searchsorted(edges[1:-1], c, side="right")
    count = jnp.zeros(bins, jnp.int32).at[index].add(1)
    return of_bins(edges, count, group_sums(c, index, bins), group_sums(hits, index, bins))


def of_bins(
    edges: Float[Array, " b1"],
    count: Int[Array, " b"],
    confidence: Float[Array, " b"],
    hits: Float[Array, " b"],
) -> Reliability:
    """Return `Reliability` from the count, sum of confidences and number of hits in each bin."""
    filled = count > 0
    k = jnp.where(filled, count, 1).astype(edges.dtype)
    mean_confidence, accuracy = (jnp.where(filled, x / k, jnp.nan) for x in (confidence, hits))
    low, high = wilson(accuracy, k)
    gap = jnp.where(filled, jnp.abs(accuracy - mean_confidence), 0)
    n = jnp.sum(count).astype(edges.dtype)
    ece = jnp.sum(gap * k) / n
    return Reliability(edges, mean_confidence, accuracy, count, low, high, ece, largest(gap))


def wilson(
    rate: Float[Array, "*b"], n: Float[Array, "*b"]
) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """Return the lower and upper ends of Wilson's (1927) 95 % interval for a probability.

    ``rate`` is the observed rate in ``n`` cases. The interval is inside [0, 1] and has positive
    width also at rates 0 and 1.
    """
    z = jnp.asarray(Z, rate.dtype)
    middle = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * jnp.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    # at rates 0 and 1 one end is exactly 0 or 1, without rounding errors
    return jnp.where(rate == 0, 0, middle - half), jnp.where(rate == 1, 1, middle + half)


@rows_in_one_order
def confidences(
    predictions: ArrayLike, targets: ArrayLike
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """Return the confidence in the most likely class, and whether that class is the target.

    Confidence calibration means P(correct | confidence) = confidence, a binary problem.

    Args:
        predictions: Class probabilities, [n, m], or probabilities of class 1, [n].
        targets: Classes 0, .., m - 1, [n].

    Returns:
        The confidences max p, [n], and whether the most likely class (the first of ties) is the
        target, [n].

    Source: Widmann et al. (2021), Section 2.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions = jnp.array([[0.75, 0.25], [0.5, 0.5]])
        >>> confidence, correct = jaxcal.measures.confidences(predictions, jnp.array([0, 1]))
        >>> confidence.tolist(), correct.tolist()
        ([0.75, 0.5], [True, False])
    """
    p = checks.probabilities(predictions, "predictions", binary=True)
    ys = checks.labels(targets, p.shape[0], p.shape[1], "targets")
    return largest(p, axis=1), jnp.argmax(p, axis=1).astype(ys.dtype) == ys


@rows_in_one_order
def ece(predictions: ArrayLike, targets: ArrayLike, *, bins: int = 15) -> Scalar:
    r"""Return the expected calibration error (ECE) of the most likely class.

    :math:`\sum_b \frac{n_b}{n} |accuracy_b - confidence_b|` over bins b of equal width, which hold
    n_b of n observations. confidence_b is the mean of max p in bin b. accuracy_b is the fraction of
    cases in bin b whose most likely class is the target. Biased upwards if n_b is small.

    Args:
        predictions: Class probabilities, [n, m], or probabilities of class 1, [n].
        targets: Classes 0, .., m - 1, [n].
        bins: Number of bins. `reliability` returns each bin and the largest gap (MCE).

    Returns:
        The error, [].

    Cost: O(n (m + log bins)).

    Source: Guo et al. (2017), Section 2.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions = jnp.array([[0.8, 0.2]] * 4)  # right in 2 of 4 cases
        >>> round(float(jaxcal.measures.ece(predictions, jnp.array([0, 0, 1, 1]))), 3)
        0.3
    """
    return reliability(*confidences(predictions, targets), bins=bins).ece
