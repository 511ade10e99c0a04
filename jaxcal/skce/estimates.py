"""Estimates of the squared calibration error from blocks, and intervals for it."""

from functools import partial
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.scipy.special import ndtri
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.numerics import at_least
from jaxcal.preparation import Specification
from jaxcal.quadratic import block_sums
from jaxcal.results import Interval, TestResult, plain
from jaxcal.skce.specification import MeanOptions, mean_specification
from jaxcal.typing import Key, KeyLike, Scalar


class BlockEstimates(eqx.Module):
    """Unbiased estimates of the squared calibration error, one from each of m blocks.

    ``blocks`` [m]: independent and identically distributed where the observations are. ``estimate``
    []: their mean. ``standard_error`` []: of that mean, from their spread (ddof 1); NaN for one
    block. ``size`` observations make a block; the last n mod size observations are not used.
    """

    blocks: Float[Array, " m"]
    estimate: Scalar
    standard_error: Scalar
    size: int = eqx.field(static=True)
    n: int = eqx.field(static=True)

    def lower_bound(self, level: float = 0.05) -> Scalar:
        r"""``max(0, estimate - z standard_error)``: the calibration error is above it with
        probability 1 - ``level``, for many blocks. Inverts the test of blocks
        `jaxcal.nulls.BlockNormal`.
        """
        z = ndtri(jnp.asarray(1 - checks.level(level), self.estimate.dtype))
        return at_least(self.estimate - z * self.standard_error, 0)

    def warnings(self) -> list[str]:
        """Sentences about anything that limits what the estimates say."""
        if isinstance(self.estimate, Tracer):
            return []
        m, left = self.blocks.shape[-1], self.n - self.blocks.shape[-1] * self.size
        finite = bool(np.all(np.isfinite(np.asarray(self.estimate))))
        sentences = [
            ("the estimate is not a number: are parameters and targets finite?", not finite),
            (
                f"the last {left} of {self.n} observations make no whole block and were not used",
                left > 0,
            ),
            (f"{m} blocks are few for a normal limit: use smaller blocks", 1 < m < 20),
            ("one block has no spread: there is no standard error", m == 1),
        ]
        return [text for text, holds in sentences if holds]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        return plain(self) | {"warnings": self.warnings()}

    def __repr__(self) -> str:
        if isinstance(self.estimate, Tracer):
            return "BlockEstimates(traced)"
        m = self.blocks.shape[-1]
        if np.ndim(self.estimate):
            head = f"{np.size(self.estimate)} results, batch shape {np.shape(self.estimate)}: "
            return head + f"SKCE from {m} blocks of {self.size} observations"
        lines = [
            f"SKCE from {m} blocks of {self.size} observations",
            f"  estimate   {float(self.estimate):.4g}   (standard error "
            f"{float(self.standard_error):.2g})",
        ]
        return "\n".join(lines + [f"  warning: {text}" for text in self.warnings()])

    __str__ = __repr__


def block_estimates(
    key: KeyLike, predictions: Any, targets: Any, *, size: int = 2, **options: Unpack[MeanOptions]
) -> BlockEstimates:
    r"""Estimates of SKCE from consecutive blocks of ``size`` observations, in O(n size).

    :math:`\hat\eta_b = \binom B2^{-1} \sum_{i < j} h_{ij}` over the pairs of block b. Size 2 is the
    linear estimator, size n the unbiased estimate of `skce`. Shuffle ordered data first. Arguments
    and units as in `skce_test`. Raises ValueError unless 2 <= size <= n.
    Source: Widmann, Lindsten and Zachariah (2021), Lemma 2.
    """
    key = checks.key(key)
    predictions, ys, spec = mean_specification(predictions, targets, **options)
    size = checks.integer(size, "size", least=2, most=(n := len(ys)))
    blocks, error = _blocks(key, predictions, ys, spec, size=size)
    return BlockEstimates(blocks, jnp.mean(blocks), error, size, n)


@partial(jax.jit, static_argnames="size")
def _blocks(
    key: Key, predictions: Any, targets: Array, spec: Specification, *, size: int
) -> tuple[Float[Array, " m"], Scalar]:
    keys = jax.random.split(key, 3)[:2]
    prepared, featured = spec.fit(keys, predictions, targets)
    blocks = jnp.sum(block_sums(prepared.pairwise, featured.features, size).means, axis=0)
    m = blocks.size
    none = jnp.full((), jnp.nan, blocks.dtype)
    return blocks, jnp.std(blocks, ddof=1) / m**0.5 if m > 1 else none


def skce_interval(result: TestResult | BlockEstimates, *, level: float = 0.05) -> Interval:
    r"""A normal interval for the squared calibration error of a model that is NOT calibrated.

    Of confidence 1 - ``level``:
    :math:`\hat{SKCE} \pm z\,2\sqrt{\hat\zeta_1 / n}` for the result of `skce_test`, with
    :math:`\zeta_1 = Var\, E[h \mid x]`; for `BlockEstimates` the spread of the blocks. Near
    calibration both ends are of the order of 1 / n and the limit is not normal: read the p-value.
    The lower end is not cut at 0. Source: Widmann, Lindsten and Zachariah (2021), Cor. B.2 and B.3.
    """
    if not (hasattr(result, "estimate") and hasattr(result, "standard_error")):
        raise TypeError(
            f"result: wanted one of skce_test or block_estimates, got {checks.say(result)}"
        )
    level = checks.level(level)
    z = ndtri(jnp.asarray(1 - level / 2, result.estimate.dtype))
    half = z * result.standard_error
    return Interval(result.estimate - half, result.estimate + half, level)
