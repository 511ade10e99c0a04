"""Candidates weighted by the density: steps that do not look at it, and independent draws.

The probability that a candidate is the target is proportional to its density over that of the
proposal. `jaxcal.calibration_test` draws such points near each prediction; these two serve as
comparison. Source: Tjelmeland (2004).
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxcal.candidates import Candidates
from jaxcal.read.sampling import sample
from jaxcal.typing import Distribution


class RandomWalk(eqx.Module):
    r"""Candidates by a random walk from the target to a centre and back, weighted by p.

    The centre is :math:`c = y + s M \xi`, the candidates are :math:`a_k = c + s M \xi_k`, with one
    log-uniform s a prediction, shared by its candidates; M is the unit of the prediction.

    Args:
        n_candidates: Number m of candidates.
        smallest: Smallest s.
        largest: Largest s.
    """

    n_candidates: int = eqx.field(default=64, static=True)
    smallest: float = eqx.field(default=0.3, static=True)
    largest: float = eqx.field(default=3.0, static=True)

    def __call__(self, key, densities, ys, units, /) -> Candidates:
        n, d = ys.shape
        scale_key, noise_key = jax.random.split(key)
        low, high = jnp.log(jnp.asarray([self.smallest, self.largest], ys.dtype))
        s = jnp.exp(jax.random.uniform(scale_key, (n, 1, 1), ys.dtype, low, high))
        noise = jax.random.normal(noise_key, (n, self.n_candidates + 1, d), ys.dtype)
        steps = s * jnp.einsum("nij,nkj->nki", units, noise)
        others = ys[:, None] + steps[:, :1] + steps[:, 1:]
        points = jnp.concatenate([ys[:, None], others], axis=1)
        logs = densities.logs(points)
        return Candidates(points, logs, jax.nn.softmax(logs, axis=1), jnp.ones((), ys.dtype))


class Independent(eqx.Module):
    """Candidates by independent draws of a known distribution, weighted by p over its density.

    Args:
        distribution: A numpyro distribution with batch shape [n] or [] over the targets, which
            must reach wherever the predictions do. It must not depend on the targets.
        n_candidates: Number m of candidates.
    """

    distribution: Distribution
    n_candidates: int = eqx.field(default=64, static=True)

    def __call__(self, key, densities, ys, units, /) -> Candidates:
        n, d = ys.shape
        event = tuple(self.distribution.event_shape)
        batch = tuple(self.distribution.batch_shape)
        shape = (self.n_candidates, n) if batch == () else (self.n_candidates,)
        others = sample(key, self.distribution, shape, "distribution").reshape(
            self.n_candidates, n, d
        )
        points = jnp.concatenate([ys[None], others.astype(ys.dtype)])
        proposal = self.distribution.log_prob(points.reshape(-1, n, *event))
        points = jnp.moveaxis(points, 0, 1)
        logs = densities.logs(points)
        weights = jax.nn.softmax(logs - jnp.moveaxis(proposal, 0, 1), axis=1)
        return Candidates(points, logs, weights, jnp.ones((), ys.dtype))
