r"""Use posteriors of numpyro models and guides, over their unconstrained latent variables.

numpyro maps each latent site to the whole space by the bijection of its support; the density of the
unconstrained variables includes the log-Jacobian. The parameters here are these variables,
flattened, so positive, ordered, simplex and matrix-valued sites need no special treatment.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from jaxcal.read import Scores, Unnormalized, convert
from jaxcal.sbi.posteriors import BATCH, Swapped, chunked_scores
from jaxcal.typing import ArrayLike, Key, KeyLike

Program: TypeAlias = Callable[..., Any]  # a model or a guide of numpyro


class NumpyroPosterior:
    """The posterior of a numpyro model, over its unconstrained latent variables.

    Latent sites must be continuous. `pairs` raises ValueError for sites that change the density of
    the latent variables but not the simulations: ``numpyro.factor``, scaled sites, masked latent
    sites, and observed sites that are not in ``observed``. Draw pairs for these models by other
    means. An autoguide is fitted to one x: fit n of them, stack their ``params``, and pass
    ``guide.get_posterior(params)``, a distribution with batch shape [n], to `score_pairs`.

    Args:
        model: ``model(x)`` puts priors on its latent sites and observes x
            (``numpyro.sample(.., obs=x)``); ``model(None)`` simulates x. Among several arguments, x
            is the first one that is in neither ``arguments`` nor ``inputs``.
        observed: Name of the observed site, or names of several; x is then a dict of them.
        arguments: Further arguments of the model by name, the same for all observations.
        inputs: Names of further arguments that differ between observations, such as a design; xs is
            then a dict that includes them, each with a leading axis n.
        guide: A trained amortized guide with the same arguments and latent sites, which is tested
            instead of the model's exact posterior. If its supports are wider than the model's, it
            is tested as truncated to the model's supports.
        params: The guide's parameters.
        batch: Number of gradients computed at once.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro
        >>> import numpyro.distributions as dist
        >>> from jaxcal import sbi
        >>> def model(design, y=None):
        ...     slope = numpyro.sample("slope", dist.Normal())
        ...     numpyro.sample("y", dist.Normal(slope * design, 1.0).to_event(1), obs=y)
        >>> arguments = {"design": jnp.linspace(0.0, 1.0, 4)}
        >>> posterior = sbi.NumpyroPosterior(model, "y", arguments=arguments)
        >>> thetas, xs = posterior.pairs(0, 100)
        >>> thetas.shape, xs.shape
        ((100, 1), (100, 4))
    """

    reader = staticmethod(convert.numbers)  # whole numbers may be categories or indices

    def __init__(
        self,
        model: Program,
        observed: str | Sequence[str] = "x",
        *,
        arguments: Mapping[str, ArrayLike] | None = None,
        inputs: Sequence[str] = (),
        guide: Program | None = None,
        params: dict[str, PyTree] | None = None,
        batch: int = BATCH,
    ):
        self.model = convert.function(model, "model", "the observation")
        self.guide = guide if guide is None else convert.function(guide, "guide", "the observation")
        self.params = {} if params is None else _dict(params)
        self.observed = _site_names(observed)
        self.single = isinstance(observed, str)
        self.arguments = {} if arguments is None else _dict(arguments, "arguments")
        none = isinstance(inputs, list | tuple) and not inputs
        self.inputs = () if none else _site_names(inputs, "inputs")
        self.batch = convert.integer(batch, "batch")
        taken = {*self.arguments, *self.inputs}
        self.x_name = _first_free(self.model, taken, "model")
        self.guide_x_name = None if guide is None else _first_free(guide, taken, "guide")
        self.names = self.unravel = None
        if not self.inputs:
            self._learn_latents({})

    def pairs(
        self, key: KeyLike, n: int, inputs: Mapping[str, ArrayLike] | None = None
    ) -> tuple[Float[Array, "n d"], PyTree]:
        """Simulate n pairs: unconstrained parameters from the prior, and an observation for each.

        Args:
            key: Random key: typed, legacy or an integer.
            n: Number of pairs.
            inputs: The model's ``inputs`` by name, each with a leading axis n.

        Returns:
            Parameters [n, d]; and xs, the values of the observed site, or a dict of observed sites
            and inputs. ValueError for the sites listed in `NumpyroPosterior`.
        """
        return self._pairs(key, n, inputs, strict=True)

    def _pairs(self, key: KeyLike, n: int, inputs: PyTree, *, strict: bool) -> tuple[Array, PyTree]:
        from numpyro.infer import Predictive

        n = convert.integer(n, "n")
        inputs = self._inputs(inputs, n)
        one = jax.tree.map(lambda leaf: leaf[0], inputs)
        if strict:
            self._check_simulates(one)
        if not self.inputs:
            drawn = Predictive(self.model, num_samples=n)(convert.key(key), **self._call(None, one))
        else:

            def simulate(key: Key, row: PyTree) -> PyTree:
                drawn = Predictive(self.model, num_samples=1)(key, **self._call(None, row))
                return jax.tree.map(lambda leaf: leaf[0], drawn)

            drawn = jax.vmap(simulate)(jax.random.split(convert.key(key), n), inputs)
        missing = [name for name in self.observed if name not in drawn]
        if missing:
            raise ValueError(f"observed: model(None) has no site {missing[0]!r}")
        thetas = self.free(drawn, inputs)
        xs = {name: drawn[name] for name in self.observed} | inputs
        return thetas, xs[self.observed[0]] if self.single and not inputs else xs

    def free(
        self, latents: Mapping[str, ArrayLike], inputs: Mapping[str, ArrayLike] | None = None
    ) -> Float[Array, "n d"]:
        """Map latent sites [n, ..], in their supports, to unconstrained vectors [n, d]; ``inputs``
        are those of `pairs`, as the support of a site may depend on them."""
        rows = self._inputs(inputs, np.shape(next(iter(latents.values())))[0])
        if self.inputs:
            self._learn_latents({name: leaf[0] for name, leaf in rows.items()})
        one = jax.vmap(lambda *pair: ravel_pytree(self._unconstrained(*pair))[0])
        return jax.jit(one)({name: jnp.asarray(latents[name]) for name in self.example}, rows)

    def draw_nodes(self, key: Key, m: int) -> Float[Array, "m d"]:
        """Return m unconstrained draws of the prior as nodes, for the inputs of the first
        observation. Sites that raise ValueError in `pairs` are ignored here."""
        inputs = None
        if self.inputs:
            inputs = {name: jnp.stack([self.row[name]] * m) for name in self.inputs}
        return self._pairs(key, m, inputs, strict=False)[0]

    def log_prob(self, u: Array, x: PyTree) -> Array:
        """Return the log density at unconstrained parameters u [d] given one x, up to a constant
        that may depend on x. It is the density of the guide if there is one, else of the model."""
        from numpyro.infer.util import potential_energy

        assert self.unravel is not None
        inputs = {name: x[name] for name in self.inputs}
        sites = {name: x[name] for name in self.observed} if isinstance(x, Mapping) else x
        sites = sites[self.observed[0]] if self.single and isinstance(x, Mapping) else sites
        call, latents = self._call(sites, inputs), self.unravel(u)
        if self.guide is None:
            return jnp.negative(potential_energy(self.model, (), call, latents))
        return self._guide_log_prob(latents, call, self._call(sites, inputs, self.guide_x_name))

    def _guide_log_prob(self, free: dict[str, Array], of_model: PyTree, of_guide: PyTree) -> Array:
        """Return the guide's log density at ``free``, latents mapped from the model's supports to
        the whole space; -infinity outside of the guide's supports."""
        from numpyro.handlers import seed, substitute
        from numpyro.infer.util import constrain_fn, get_transforms, log_density

        model = seed(self.model, jax.random.key(0))
        latents = constrain_fn(model, (), of_model, free)
        transforms = get_transforms(model, (), of_model, latents)
        guide = substitute(self.guide, data=self.params)
        log_prob, sites = log_density(guide, (), of_guide, latents)
        for name, value in latents.items():
            if name not in sites:
                raise ValueError(f"guide: it has no site {name!r}, which is latent in the model")
            jacobian = transforms[name].log_abs_det_jacobian(free[name], value)
            inside = _inside(sites[name]["fn"].support, value)
            log_prob = jnp.where(inside, log_prob + jnp.sum(jacobian), -jnp.inf)
        return jnp.asarray(log_prob)

    def scored(self, thetas: Array, xs: PyTree, nodes: Array | None) -> Scores:
        self.prepare(thetas, xs)
        return chunked_scores(self.log_prob, thetas, xs, nodes, batch=self.batch)

    def prepare(self, thetas: Array, xs: PyTree) -> None:
        """Set the latent sites for the inputs in row 0 of xs; ValueError if xs lacks a site."""
        if self.inputs:
            if not isinstance(xs, Mapping) or not {*self.inputs, *self.observed} <= {*xs}:
                raise ValueError(
                    f"xs: wanted a dict of {', '.join((*self.observed, *self.inputs))}, the "
                    f"observed sites and the model's inputs"
                )
            self._learn_latents({name: jnp.asarray(xs[name][0]) for name in self.inputs})

    def predictions(self, xs: PyTree) -> Unnormalized:
        return Unnormalized(Swapped(self.log_prob), xs)

    def _call(
        self, x: PyTree, inputs: Mapping[str, ArrayLike], x_name: str | None = None
    ) -> dict[str, PyTree]:
        return {x_name or self.x_name: x, **self.arguments, **inputs}

    def _inputs(self, inputs: PyTree, n: int) -> dict[str, Array]:
        named = {} if inputs is None else _dict(inputs, "inputs")
        if {*named} != {*self.inputs}:
            raise ValueError(
                f"inputs: wanted {', '.join(self.inputs) or 'none'}, got {', '.join(named) or None}"
            )
        rows = {name: convert.numbers(value, "inputs") for name, value in named.items()}
        if any(leaf.shape[:1] != (n,) for leaf in rows.values()):
            raise ValueError(f"inputs: wanted a leading axis of n={n}, one entry per pair")
        return rows

    def _learn_latents(self, row: dict[str, Array]) -> None:
        """Set the latent sites, their names and their flattening, for the inputs in ``row``."""
        self.row = row
        self.example = self._latents()
        unconstrained = self._unconstrained(self.example, row)
        flat, self.unravel = ravel_pytree(unconstrained)
        self.d, self.names = flat.size, _coordinate_names(unconstrained)

    def _sites(self) -> dict[str, PyTree]:
        from numpyro.handlers import seed, trace

        program = seed(self.model, jax.random.key(0))
        sites = trace(program).get_trace(**self._call(None, self.row))
        return {name: site for name, site in sites.items() if site["type"] == "sample"}

    def _check_simulates(self, row: dict[str, Array]) -> None:
        """Raise ValueError if a site changes the joint density but not what the model simulates."""
        self.row = row
        for name, site in self._sites().items():
            factor = type(site["fn"]).__name__ == "Unit"
            if factor or (site["is_observed"] and name not in self.observed):
                what = "a factor" if factor else "observed"
                raise ValueError(
                    f"model: site {name!r} is {what} also in model(None): it changes the density "
                    f"of the latent variables, but simulations do not use it. Make it part of a "
                    f"distribution, or test pairs that you drew from the joint density yourself"
                )
            if name not in self.observed and _is_masked(site["fn"]):
                raise ValueError(
                    f"model: latent site {name!r} is masked (handlers.mask or .mask): its density "
                    f"leaves out entries that simulations draw. Test the model without the mask"
                )
            if site.get("scale") is not None:
                raise ValueError(
                    f"model: site {name!r} has a scaled log density (handlers.scale or a "
                    f"subsampled plate), which simulations do not use: test the model without it"
                )

    def _latents(self) -> dict[str, Array]:
        latents = {}
        for name, site in self._sites().items():
            if name in self.observed or site["is_observed"]:
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

    def _unconstrained(self, latents: dict[str, Array], row: dict[str, Array]) -> dict[str, Array]:
        from numpyro.handlers import seed
        from numpyro.infer.util import unconstrain_fn

        fixed = seed(self.model, jax.random.key(0))
        unconstrained = unconstrain_fn(fixed, (), self._call(None, row), latents)
        return {name: unconstrained[name] for name in latents}


def _dict(values: object, name: str = "params") -> dict[str, PyTree]:
    if not isinstance(values, Mapping):
        raise TypeError(f"{name}: wanted a dict of values by name, got {convert.say(values)}")
    return dict(values)


def _site_names(observed: Any, argument: str = "observed") -> tuple[str, ...]:
    names = (observed,) if isinstance(observed, str) else observed
    nonempty = isinstance(names, list | tuple) and names
    if not nonempty or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument}: wanted names, got {convert.say(observed)}")
    return tuple(names)


def _is_masked(distribution: Any) -> bool:
    """Return whether a distribution or its base has a mask that is not all True, or is traced."""
    mask = getattr(distribution, "_mask", True)
    base = getattr(distribution, "base_dist", None)
    unmasked = not isinstance(mask, Tracer) and np.all(mask)
    return not unmasked or (base is not None and _is_masked(base))


def _inside(support: Any, value: Array) -> Array:
    """Return whether a value is within the bounds of a constraint, []; True if it has none."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    low, high = getattr(support, "lower_bound", -jnp.inf), getattr(support, "upper_bound", jnp.inf)
    return jnp.all((value >= low) & (value <= high))


def _first_free(model: Program, taken: set[str], of: str) -> str:
    """Return the name of the model's argument for x: the first one not in ``taken``."""
    parameters = inspect.signature(model).parameters
    unknown = sorted(taken - set(parameters))
    named = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if unknown and not takes_any:
        raise ValueError(f"arguments, inputs: the {of} has no argument {unknown[0]!r}")
    free = [p for p in named if p.name not in taken]
    if not free:
        raise ValueError(f"{of}: wanted an argument for the observation, {of}(x)")
    missing = [p.name for p in free[1:] if p.default is p.empty]
    if missing:
        raise ValueError(
            f"{of}: its argument {missing[0]!r} has no value: give it by arguments= (one value "
            f"for all observations) or inputs= (one per observation)"
        )
    return free[0].name


def _coordinate_names(latents: dict[str, Array]) -> tuple[str, ...]:
    """Return a name such as "a" or "a[0, 1]" per coordinate, in the order of `ravel_pytree`."""
    names = []
    for name in sorted(latents):
        shape = np.shape(latents[name])
        names += [
            name + (f"[{', '.join(map(str, index))}]" if shape else "")
            for index in np.ndindex(shape)
        ]
    return tuple(names)
