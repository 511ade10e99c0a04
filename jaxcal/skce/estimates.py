"""Estimate the squared calibration error from blocks, and compute intervals for it."""

from functools import partial
from typing import ClassVar, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from jaxcal.engine.quadratic import block_sums, ordered_pairs
from jaxcal.fit.specification import Specification
from jaxcal.numerics import at_least
from jaxcal.read import checks, convert
from jaxcal.results import Interval, Result, Sentences, TestResult, recorded
from jaxcal.skce.calibration import MeanOptions, mean_specification
from jaxcal.typing import ArrayLike, Key, KeyLike, PredictionsLike, Scalar


class BlockEstimates(Result):
    """Unbiased estimates of the squared calibration error, one from each of m blocks.

    The last n mod ``size`` observations are not used.

    Attributes:
        blocks: Estimates, [m]; independent and identically distributed if the observations are.
        estimate: Mean of the estimates of the blocks, [].
        standard_error: Standard error of this mean, from the spread of the blocks (ddof 1), []; NaN
            for one block.
        size: Number of observations in a block.
        n: Number of observations.
    """

    _scalar: ClassVar[str] = "estimate"

    blocks: Float[Array, " m"]
    estimate: Scalar
    standard_error: Scalar
    size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def lower_bound(self, level: float = 0.05) -> Scalar:
        """Return a lower bound of the squared error, ``max(0, estimate - t standard_error)``, [].

        t is the quantile 1 - ``level`` of Student's t with m - 1 degrees of freedom for m blocks.
        The bound inverts the test `jaxcal.nulls.BlockNormal`; for many blocks its confidence is
        1 - ``level``. NaN for one block.
        """
        from scipy.special import stdtrit

        t = float(stdtrit(self.blocks.shape[-1] - 1, 1 - checks.level(level)))
        return at_least(self.estimate - t * self.standard_error, 0)

    def _sentences(self) -> Sentences:
        m, unused = self.blocks.shape[-1], self.n - self.blocks.shape[-1] * self.size
        finite = bool(np.all(np.isfinite(np.asarray(self.estimate))))
        return [
            (
                "the estimate is not a number: are parameters and targets finite?"
                " [nonfinite-estimate]",
                not finite,
            ),
            (
                f"the last {unused} of {self.n} observations make no whole block and were not used"
                " [left-over-observations]",
                unused > 0,
            ),
            (f"{m} blocks are few for a normal limit: use smaller blocks [few-blocks]", 1 < m < 20),
            ("one block has no spread: there is no standard error [few-blocks]", m == 1),
        ]

    def _batch_lines(self) -> list[str]:
        head = f"{np.size(self.estimate)} results, batch shape {self.batch_shape}: "
        return [f"{head}SKCE from {self.blocks.shape[-1]} blocks of {self.size} observations"]

    def _lines(self) -> list[str]:
        return [
            f"SKCE from {self.blocks.shape[-1]} blocks of {self.size} observations",
            f"  estimate   {float(self.estimate):.4g}   (squared; standard error "
            f"{float(self.standard_error):.2g})",
        ]


@recorded
def block_estimates(
    key: KeyLike,
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    size: int = 2,
    **options: Unpack[MeanOptions],
) -> BlockEstimates:
    r"""Estimate SKCE from consecutive blocks of observations, at a cost linear in n.

    :math:`\hat\eta_b = \binom B2^{-1} \sum_{i < j} h_{ij}` over the pairs of block b, with h
    the kernel of the U-statistic `skce`. Shuffle ordered data first.

    Args:
        key: Random key, used only where draws are needed.
        predictions: As in `jaxcal.skce_test`.
        targets: As in `jaxcal.skce_test`.
        size: Number of observations B in a block, from 2 (the linear estimator) to n (the unbiased
            estimate of `skce`).
        **options: As in `skce`.

    Returns:
        `BlockEstimates`.

    Cost: O(n size).

    Source: Widmann, Lindsten and Zachariah (2021), Lemma 2.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions = dist.Normal(centers, 1.0)
        >>> result = jaxcal.skce.block_estimates(1, predictions, centers + 0.8 + noise, size=10)
        >>> bool(result.estimate > 2 * result.standard_error)
        True
    """
    key = convert.key(key)
    predictions, ys, spec = mean_specification(predictions, targets, **options)
    size = convert.integer(size, "size", least=2, most=(n := len(ys)))
    blocks, error = _blocks(key, predictions, ys, spec, size=size)
    return BlockEstimates(blocks, jnp.mean(blocks), error, size, n)


@partial(jax.jit, static_argnames="size")
def _blocks(
    key: Key, predictions: PredictionsLike, targets: Array, spec: Specification, *, size: int
) -> tuple[Float[Array, " m"], Scalar]:
    keys = jax.random.split(key, 3)[:2]
    prepared, featured = spec.fit(keys, predictions, targets)
    totals = block_sums(prepared.pairwise, featured.features, size).total
    blocks = jnp.sum(totals, axis=0) / ordered_pairs(size)
    m = blocks.size
    none = jnp.full((), jnp.nan, blocks.dtype)
    return blocks, jnp.std(blocks, ddof=1) / m**0.5 if m > 1 else none


def skce_interval(result: TestResult | BlockEstimates, *, level: float = 0.05) -> Interval:
    r"""Return a normal interval for the squared calibration error of a MISCALIBRATED model.

    For the result of `skce_test` it is :math:`\hat{SKCE} \pm z\,2\sqrt{\hat\zeta_1 / n}`: z is
    the normal quantile of 1 - ``level`` / 2, and :math:`\zeta_1` the variance of E[h(X, X') | X],
    with h the kernel of `skce`; `jaxcal.nulls.DependentWild` widens it for dependent observations.
    For `BlockEstimates` it is from the spread of the blocks, and observations must be independent.
    Near calibration the estimate is not normal: use the p-value. The lower end is not clipped at 0.

    Args:
        result: Result of `jaxcal.skce_test` or of `jaxcal.skce.block_estimates`.
        level: The interval has confidence 1 - ``level``.

    Returns:
        A named tuple with ``low`` and ``high`` [], and ``level``.

    Source: Widmann, Lindsten and Zachariah (2021), Cor. B.2 and B.3.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> result = jaxcal.skce_test(1, dist.Normal(centers, 1.0), centers + 0.8 + noise)
        >>> interval = jaxcal.skce_interval(result)
        >>> bool(0 < interval.low < result.estimate < interval.high)
        True
    """
    has_error = hasattr(result, "estimate") and hasattr(result, "standard_error")
    if not has_error or getattr(result, "parts", None) is not None:  # parts: calibration_test
        raise TypeError(
            f"result: wanted one of skce_test or block_estimates, got {convert.say(result)}"
        )
    level = checks.level(level)
    z = ndtri(jnp.asarray(1 - level / 2, result.estimate.dtype))
    half = z * result.standard_error
    return Interval(result.estimate - half, result.estimate + half, level)
