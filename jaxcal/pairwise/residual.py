r"""h(i, j) = k(p_i, p_j) r_i r_j: residuals r are weight columns of the engine, k is the block."""

import equinox as eqx
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import gram_block, gram_diagonal
from jaxcal.typing import DivergenceLike, Features, KernelLike


class PredictionKernel(eqx.Module):
    """The kernel on predictions alone, for residuals that change from one draw to the next.

    Features are those of the divergence; a column of weights holds one residual an observation.
    """

    kernel: KernelLike
    divergence: DivergenceLike

    @property
    def channels(self) -> int:
        return 1

    def block(self, rows: Features, cols: Features) -> Float[Array, "1 r s"]:
        return gram_block(self.kernel, self.divergence, rows, cols)[None]

    def diagonal(self, features: Features) -> Float[Array, "1 n"]:
        return gram_diagonal(self.kernel, self.divergence, features)[None]
