r"""h(i, j) = k(p_i, p_j) r_i r_j: residuals r are weight columns of the engine, k is the block."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import gram_block
from jaxcal.typing import Features


class PredictionKernel(eqx.Module):
    """The kernel on predictions alone, for residuals that change from one draw to the next.

    Features are those of the divergence; a column of weights holds one residual an observation.
    """

    kernel: Any
    divergence: Any

    @property
    def channels(self) -> int:
        return 1

    def block(self, rows: Features, cols: Features) -> Float[Array, "1 r s"]:
        return gram_block(self.kernel, self.divergence, rows, cols)[None]

    def diagonal(self, features: Features) -> Float[Array, "1 n"]:
        def own(one: Features) -> Array:
            single = jax.tree.map(lambda leaf: leaf[None], one)
            return self.block(single, single)[0, 0, 0]

        return jnp.atleast_2d(jax.vmap(own)(features))
