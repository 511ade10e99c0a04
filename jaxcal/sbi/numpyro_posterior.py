r"""Posteriors of numpyro models and guides, over their unconstrained latent variables.

numpyro brings every latent site to the whole space by the bijection of its support; the density of
the unconstrained variables carries the log-Jacobian. Those variables, flattened, are the
parameters here, so positive, ordered, simplex and matrix-valued sites need nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxcal import convert
from jaxcal.models import Scores, Unnormalized
from jaxcal.sbi.posteriors import BATCH, chunked_scores
from jaxcal.typing import Key, KeyLike


class NumpyroPosterior:
    """The posterior of a numpyro model with one argument, the observation.

    ``model(x)`` puts priors on its latent sites and observes x (``numpyro.sample(.., obs=x)``), and
    ``model(None)`` simulates it. ``observed``: the name of that site, or of several, in which case
    x is a dict of them. ``guide``: a trained amortized guide, ``guide(x)`` with the same sites, and
    ``params`` its parameters, to test the guide instead of the model's own posterior. numpyro's
    autoguides are fitted to one x: give `GuidePosterior` instead.

    Parameters are the unconstrained latent variables: `pairs` draws them with their observations
    from the prior predictive, `free` converts constrained ones.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        observed: str | Sequence[str] = "x",
        *,
        guide: Callable[..., Any] | None = None,
        params: dict[str, Any] | None = None,
        batch: int = BATCH,
    ):
        self.model = convert.function(model, "model", "the observation")
        self.guide = guide if guide is None else convert.function(guide, "guide", "the observation")
        self.params = {} if params is None else _dict(params)
        self.observed = _site_names(observed)
        self.single = isinstance(observed, str)
        self.batch = convert.integer(batch, "batch")
        self.example = self._latents()
        flat, self.unravel = ravel_pytree(self._unconstrained(self.example))
        self.d = flat.size
        self.names = _coordinate_names(self._unconstrained(self.example))

    def pairs(self, key: KeyLike, n: int) -> tuple[Float[Array, "n d"], Any]:
        """n unconstrained parameters from the prior, [n, d], and an observation for each."""
        from numpyro.infer import Predictive

        drawn = Predictive(self.model, num_samples=n)(convert.key(key), None)
        missing = [name for name in self.observed if name not in drawn]
        if missing:
            raise ValueError(f"observed: model(None) has no site {missing[0]!r}")
        thetas = self.free({name: drawn[name] for name in self.example})
        xs = {name: drawn[name] for name in self.observed}
        return thetas, xs[self.observed[0]] if self.single else xs

    def free(self, latents: dict[str, Array]) -> Float[Array, "n d"]:
        """Constrained latents, each with a leading axis n, as unconstrained vectors [n, d]."""
        one = jax.jit(jax.vmap(lambda latent: ravel_pytree(self._unconstrained(latent))[0]))
        return one({name: jnp.asarray(latents[name]) for name in self.example})

    def draw_nodes(self, key: Key, m: int) -> Float[Array, "m d"]:
        """m draws of the prior, unconstrained."""
        return self.pairs(key, m)[0]

    def log_prob(self, u: Array, x: Any) -> Array:
        """The log density of the unconstrained parameters given x, up to its constant."""
        from numpyro.infer.util import potential_energy

        program = self.model if self.guide is None else _with_params(self.guide, self.params)
        return jnp.negative(potential_energy(program, (x,), {}, self.unravel(u)))

    def scored(self, thetas: Array, xs: Any, nodes: Array | None) -> Scores:
        return chunked_scores(self.log_prob, thetas, xs, nodes, batch=self.batch)

    def predictions(self, xs: Any) -> Unnormalized:
        """The posteriors given xs, for tests that need log densities."""
        return Unnormalized(_Density(self), xs)

    def _latents(self) -> dict[str, Array]:
        from numpyro.handlers import seed, trace

        sites = trace(seed(self.model, jax.random.key(0))).get_trace(None)
        latents = {}
        for name, site in sites.items():
            if site["type"] != "sample" or name in self.observed:
                continue
            if site["is_observed"]:
                continue
            if site["fn"].support.is_discrete:
                raise ValueError(
                    f"model: site {name!r} is discrete, and a discrete parameter has no score: "
                    f"sum it out of the model (a mixture instead of a choice)"
                )
            latents[name] = site["value"]
        if not latents:
            raise ValueError("model: model(None) has no latent sites besides the observed ones")
        return latents

    def _unconstrained(self, latents: dict[str, Array]) -> dict[str, Array]:
        from numpyro.infer.util import unconstrain_fn

        fixed = _seeded(self.model)
        return {
            name: value
            for name, value in unconstrain_fn(fixed, (None,), {}, latents).items()
            if name in latents
        }


class GuidePosterior:
    """Gaussian guides of numpyro fitted by SVI to each observation, over unconstrained latents.

    ``guide``: an autoguide with ``get_posterior`` (AutoDiagonalNormal, AutoMultivariateNormal,
    AutoLowRankMultivariateNormal); ``params``: its parameters with a leading axis n, one fit an
    observation (``jax.vmap`` over the fits). Parameters are flattened as the guide does.
    """

    def __init__(self, guide: Any, params: dict[str, Array]):
        if not hasattr(guide, "get_posterior") or isinstance(guide, type):
            raise TypeError(
                f"guide: wanted an autoguide with get_posterior, got {convert.say(guide)}"
            )
        self.guide, self.params = guide, convert.leaves(_dict(params), "params")

    def log_prob(self, u: Array, params: Any) -> Array:
        """The guide's log density of one unconstrained parameter."""
        return jnp.sum(self.guide.get_posterior(params).log_prob(u))

    def scored(self, thetas: Array, xs: Any, nodes: Array | None) -> Scores:
        leading = {len(leaf) for leaf in jax.tree.leaves(self.params)}
        if leading != {len(thetas)}:
            raise ValueError(
                f"params: wanted one fit an observation, leading axes of {len(thetas)}, got "
                f"{sorted(leading)}"
            )
        return chunked_scores(self.log_prob, thetas, self.params, nodes)

    def predictions(self, xs: Any) -> Unnormalized:
        """The guides, for tests that need log densities."""
        return Unnormalized(_Density(self), self.params)

    def sample(self, key: Key, xs: Any, m: int) -> Float[Array, "n m d"]:
        """m draws of each guide."""
        keys = jax.random.split(key, len(jax.tree.leaves(self.params)[0]))
        one = jax.vmap(lambda key, params: self.guide.get_posterior(params).sample(key, (m,)))
        return one(keys, self.params)

    def rows(self, rows: Any) -> "GuidePosterior":
        """The fits of some of the observations."""
        return GuidePosterior(self.guide, jax.tree.map(lambda leaf: leaf[rows], self.params))


@dataclass(frozen=True)
class _Density:
    """``log_prob(u, x)`` of a posterior as ``log_density(x, u)``."""

    posterior: Any

    def __call__(self, x: Any, u: Array) -> Array:
        return self.posterior.log_prob(u, x)


def _dict(params: Any) -> dict[str, Any]:
    if not isinstance(params, Mapping):
        raise TypeError(f"params: wanted a dict of parameters by name, got {convert.say(params)}")
    return dict(params)


def _site_names(observed: Any) -> tuple[str, ...]:
    names = (observed,) if isinstance(observed, str) else observed
    whole = isinstance(names, list | tuple) and names
    if not whole or not all(isinstance(name, str) for name in names):
        raise TypeError(f"observed: wanted names of sites, got {convert.say(observed)}")
    return tuple(names)


def _seeded(model: Callable[..., Any]) -> Callable[..., Any]:
    from numpyro.handlers import seed

    return seed(model, jax.random.key(0))


def _with_params(guide: Callable[..., Any], params: dict[str, Any]) -> Callable[..., Any]:
    from numpyro.handlers import substitute

    return substitute(guide, data=params)


def _coordinate_names(latents: dict[str, Array]) -> tuple[str, ...]:
    """One name a coordinate, in the order of flattening."""
    names = []
    for name in sorted(latents):
        shape = np.shape(latents[name])
        names += [
            name + (f"[{', '.join(map(str, index))}]" if shape else "")
            for index in np.ndindex(shape)
        ]
    return tuple(names)
