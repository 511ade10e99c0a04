r"""Temperature scaling of any density: :math:`q \propto p^{1/T}` with respect to a measure.

One number makes all predictions wider (T > 1) or narrower (T < 1) and leaves their means where they
are. With respect to the Lebesgue measure for densities on space, the counting measure for classes,
:math:`dx / (x (1 - x))` for Beta and :math:`\prod_i dx_i / x_i` for Dirichlet predictions.
Source: Widmann et al. (2021), Appendix F.
"""

import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Int, PyTree

from jaxcal import checks
from jaxcal.measures.losses import nll
from jaxcal.results import Result, Sentences, recorded
from jaxcal.typing import ArrayLike, KeyLike, PredictionsLike, Scalar

LAST = 20  # logarithms of temperatures go to it on both sides
IMPOSSIBLE = -1e12  # the logarithm of probability 0; temperatures stay below 1e9


class MultivariatePowerExponential(eqx.Module):
    r"""Multivariate power exponential distribution, which numpyro lacks.

    :math:`f \propto \exp(-\frac12 [(y-\mu)^\top \Sigma^{-1} (y-\mu)]^\beta)`. Offers what
    distributions offer here: ``log_prob``, ``sample``, ``mean``.

    Args:
        loc: Locations mu, [n, d].
        scale_tril: Cholesky factors of Sigma, [n, d, d].
        beta: Exponent, above 0, []: 1 is the normal, 1/2 the Laplace distribution (in one dimension
            of scale :math:`2 \sqrt\Sigma`), large values are flat with an edge.

    Source: Gomez et al. (1998), A multivariate generalization of the power exponential family.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> loc, one = jnp.zeros((3, 1)), jnp.ones((3, 1, 1))
        >>> normal = jaxcal.measures.MultivariatePowerExponential(loc, one, 1.0)
        >>> round(float(normal.log_prob(loc)[0]), 3)
        -0.919
    """

    loc: Float[Array, "n d"] = eqx.field(converter=lambda v: checks.floats(v, "loc"))
    scale_tril: Float[Array, "n d d"] = eqx.field(
        converter=lambda v: checks.floats(v, "scale_tril")
    )
    beta: Scalar = eqx.field(converter=lambda v: checks.number(v, "beta", above=0))

    def __check_init__(self):
        shape = jnp.shape(self.loc)
        if not shape or jnp.shape(self.scale_tril) != (*shape, shape[-1]):
            raise ValueError(
                f"loc, scale_tril: wanted shapes [n, d] and [n, d, d], got {shape} and "
                f"{jnp.shape(self.scale_tril)}"
            )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.loc.shape[:-1]

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.loc.shape[-1:]

    @property
    def mean(self) -> Array:
        return self.loc

    @property
    def covariance_matrix(self) -> Array:
        d = self.loc.shape[-1]
        a = 2 * self.beta
        log_ratio = math.log(2) / self.beta + gammaln((d + 2) / a) - gammaln(d / a)
        sigma = self.scale_tril @ jnp.swapaxes(self.scale_tril, -1, -2)
        return jnp.exp(log_ratio) / d * sigma

    def log_prob(self, ys: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        d = self.loc.shape[-1]
        ys, loc = jnp.broadcast_arrays(ys, self.loc)
        gap = ys - loc
        root = jnp.broadcast_to(self.scale_tril, (*gap.shape, d))
        whitened = jax.scipy.linalg.solve_triangular(root, gap[..., None], lower=True)[..., 0]
        square = jnp.sum(whitened**2, axis=-1)
        # a power below 1 has no derivative at 0: there it counts as flat
        away = square > 0
        power = jnp.where(away, jnp.where(away, square, 1.0) ** self.beta, square)
        scale = jnp.sum(jnp.log(jnp.diagonal(self.scale_tril, axis1=-2, axis2=-1)), axis=-1)
        scale = jnp.broadcast_to(scale, power.shape)
        a = d / (2 * self.beta)
        constant = math.log(d) + gammaln(d / 2) - d / 2 * math.log(math.pi)
        return constant - gammaln(1 + a) - (1 + a) * math.log(2) - scale - power / 2

    def sample(self, key: KeyLike, sample_shape: tuple[int, ...] = ()) -> Array:
        shape = (*sample_shape, *self.loc.shape)
        direction_key, size_key = jax.random.split(checks.key(key))
        normal = jax.random.normal(direction_key, shape, self.loc.dtype)
        direction = normal / jnp.linalg.norm(normal, axis=-1, keepdims=True)
        a = shape[-1] / (2 * self.beta)
        size = (2 * jax.random.gamma(size_key, a, shape[:-1])) ** (1 / (2 * self.beta))
        return jnp.broadcast_to(self.loc, shape) + jnp.einsum(
            "...ij,...j->...i", self.scale_tril, direction * size[..., None].astype(normal.dtype)
        )


class TemperatureFit(Result):
    """The temperature of least negative log likelihood on n held-out targets.

    Attributes:
        temperature: Fitted temperature T, []; infinite or 0 where the search went to its end.
        before: Mean negative log likelihood at T = 1, [].
        after: Mean negative log likelihood at the fitted T, [].
        slope: Derivative of that mean in log T there, []; 0 at an optimum.
        impossible: Number of targets whose probability was exactly 0, []. No temperature changes
            that, so in the fit they count as the smallest positive number of their type.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> targets = 2 * jax.random.normal(jax.random.key(0), (200,))
        >>> fit = jaxcal.measures.fit_temperature(dist.Normal(jnp.zeros(200), 1.0), targets)
        >>> bool(fit.after < fit.before), bool(abs(fit.slope) < 1e-3)
        (True, True)
    """

    _scalar: ClassVar[str] = "temperature"

    temperature: Scalar
    before: Scalar
    after: Scalar
    slope: Scalar
    impossible: Int[Array, "*b"]

    def _sentences(self) -> Sentences:
        t, slope = np.asarray(self.temperature), np.abs(np.asarray(self.slope))
        never = int(np.sum(np.asarray(self.impossible)))
        return [
            (
                f"{never} targets had probability 0, which no temperature changes; the fit counts "
                f"them as the smallest positive number: if a softmax rounded them to 0, take it "
                f"again in float64 [impossible-targets]",
                never > 0,
            ),
            (
                "the likelihood is not finite, so there is no temperature [no-temperature]",
                ~np.isfinite(t).all(),
            ),
            (
                "no finite temperature is best: targets of probability 0, as a tree or few "
                "neighbours give them, ask for ever larger ones; smooth the probabilities first"
                " [no-optimum]",
                bool(np.any(t > 1e3)),
            ),
            (
                "the search has not ended at an optimum: is every target predicted perfectly (then "
                "any lower temperature is better)? [no-optimum]",
                bool(np.any(slope > 1e-2) or np.any(t < 1e-3)),
            ),
        ]

    def _batch_lines(self) -> list[str]:
        t = np.asarray(self.temperature)
        return [f"{t.size} temperatures from {t.min():.4g} to {t.max():.4g}"]

    def _lines(self) -> list[str]:
        t = float(self.temperature)
        words = "predictions were too narrow" if t > 1 else "predictions were too wide"
        return [
            f"temperature {t:.4g}   ({words})",
            f"  negative log likelihood {float(self.before):.4g} before, {float(self.after):.4g} "
            f"after",
        ]


def with_temperature(predictions: PredictionsLike, temperature: ArrayLike) -> Any:
    r"""The same predictions at temperature T > 0: densities :math:`\propto p^{1/T}`.

    =========================  ==========================
    class probabilities        softmax(log p / T)
    Categorical, Bernoulli     logits / T
    Normal, MultivariateNormal covariance times T
    Laplace                    scale times T
    `MultivariatePowerExponential`         Sigma times T^(1/beta)
    Beta, Dirichlet            concentrations / T
    =========================  ==========================

    Densities of Beta predictions are with respect to :math:`dx / (x (1 - x))`, those of Dirichlet
    predictions with respect to :math:`\prod_i dx_i / x_i`.

    Args:
        predictions: Class probabilities [n, m], or a numpyro distribution of these kinds, also
            inside ``.to_event`` and ``.expand``.
        temperature: Temperature T, above 0.

    Returns:
        Predictions of the same kind.

    Raises:
        ValueError: The temperature is not positive.
        TypeError: Other predictions (the power of a mixture is no mixture).

    Source: Widmann et al. (2021), Definition F.1.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> cold = jnp.array([[0.8, 0.2]])
        >>> warm = jaxcal.measures.with_temperature(cold, 2.0)  # odds 4 : 1 become 2 : 1
        >>> [round(p, 3) for p in warm[0].tolist()]
        [0.667, 0.333]
    """
    distribution: Any = predictions
    t = checks.number(temperature, "temperature", above=0)
    if isinstance(distribution, MultivariatePowerExponential):
        scale = t ** (1 / (2 * distribution.beta))
        return MultivariatePowerExponential(
            distribution.loc, scale * distribution.scale_tril, distribution.beta
        )
    if not hasattr(distribution, "batch_shape"):
        p = checks.probabilities(distribution)
        return jax.nn.softmax(_logits(p) / t.astype(p.dtype), axis=-1)
    name = type(distribution).__name__
    if name == "Independent":
        inner = with_temperature(distribution.base_dist, t)
        return inner.to_event(distribution.reinterpreted_batch_ndims)
    if name == "ExpandedDistribution":
        return with_temperature(distribution.base_dist, t).expand(distribution.batch_shape)
    if name not in FAMILIES:
        raise TypeError(
            f"predictions: at another temperature {name} is of no known family; wanted class "
            f"probabilities, MultivariatePowerExponential or numpyro's {', '.join(FAMILIES)}"
        )
    return FAMILIES[name](distribution, t)


def _logits(p: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Logarithms of probabilities, so low where these are 0 that they are 0 at any temperature, yet
    finite: the slope by the temperature is 0 there, not NaN."""
    return jnp.where(p > 0, jnp.log(jnp.where(p > 0, p, 1)), IMPOSSIBLE)


def _new(name: str, **arguments: Any) -> Any:
    import numpyro.distributions as dist

    return getattr(dist, name)(**arguments)


def _categorical(p: Any, t: Array) -> Any:
    return _new("CategoricalLogits", logits=p.logits / t)


def _bernoulli(p: Any, t: Array) -> Any:
    return _new("BernoulliLogits", logits=p.logits / t)


FAMILIES = {
    "CategoricalProbs": _categorical,
    "CategoricalLogits": _categorical,
    "BernoulliProbs": _bernoulli,
    "BernoulliLogits": _bernoulli,
    "Normal": lambda p, t: _new("Normal", loc=p.loc, scale=jnp.sqrt(t) * p.scale),
    "MultivariateNormal": lambda p, t: _new(
        "MultivariateNormal", loc=p.loc, scale_tril=jnp.sqrt(t) * p.scale_tril
    ),
    "Laplace": lambda p, t: _new("Laplace", loc=p.loc, scale=t * p.scale),
    "Beta": lambda p, t: _new(
        "Beta", concentration1=p.concentration1 / t, concentration0=p.concentration0 / t
    ),
    "Dirichlet": lambda p, t: _new("Dirichlet", concentration=p.concentration / t),
}


@recorded
def fit_temperature(
    predictions: PredictionsLike, targets: ArrayLike, *, steps: int = 40
) -> TemperatureFit:
    """Fit a temperature T to held-out targets by maximum likelihood, with optax's L-BFGS on log T.

    Apply the result by ``with_temperature(predictions, fit.temperature)``, to other data than
    these. Probabilities of 0 stay 0 at every temperature; targets of probability 0 are counted in
    ``impossible``.

    Args:
        predictions: As in `with_temperature`.
        targets: Targets, [n] or [n, ...]; integer classes for class probabilities.
        steps: Number of steps of L-BFGS.

    Returns:
        `TemperatureFit`.

    Raises:
        ValueError: Shapes, probabilities or classes are wrong; the message names the argument.
        TypeError: The predictions have no temperature.

    Cost: some evaluations of the likelihood a step.

    Source: Guo et al. (2017), Section 4.2; Widmann et al. (2021), App. F.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> targets = 2 * jax.random.normal(jax.random.key(0), (200,))
        >>> fit = jaxcal.measures.fit_temperature(dist.Normal(jnp.zeros(200), 1.0), targets)
        >>> bool(abs(fit.temperature / jnp.mean(targets**2) - 1) < 1e-3)  # the variance
        True
    """
    import optax

    steps = checks.integer(steps, "steps")
    never = jnp.zeros((), int)
    if not hasattr(predictions, "batch_shape"):
        p = checks.probabilities(predictions)
        targets = checks.labels(targets, p.shape[0], p.shape[1])
        at_target = jax.nn.one_hot(targets, p.shape[1], dtype=bool) & (p == 0)
        never = jnp.sum(at_target)
        floored = jnp.where(at_target, jnp.finfo(p.dtype).tiny, p)
        predictions = _new("CategoricalLogits", logits=_logits(floored))
    ys = jnp.asarray(checks.array(targets, "targets"))

    def loss(log_t: Array) -> Scalar:
        return nll(with_temperature(predictions, jnp.exp(log_t)), ys)

    search: Any = optax.lbfgs()
    value_and_slope: Any = optax.value_and_grad_from_state(loss)

    def step(_: object, carry: PyTree) -> PyTree:
        log_t, state = carry
        value, slope = value_and_slope(log_t, state=state)
        move, state = search.update(slope, state, log_t, value=value, grad=slope, value_fn=loss)
        return jnp.clip(log_t + move, -LAST, LAST), state

    @jax.jit
    def run() -> TemperatureFit:
        one = jnp.zeros((), jax.eval_shape(lambda: nll(predictions, ys)).dtype)
        log_t, state = jax.lax.fori_loop(0, steps, step, (one, search.init(one)))
        value, slope = value_and_slope(log_t, state=state)
        finite = jnp.isfinite(value)
        t = jnp.where(log_t >= LAST, jnp.inf, jnp.where(log_t <= -LAST, 0, jnp.exp(log_t)))
        t = jnp.where(finite, t, jnp.nan)
        return TemperatureFit(t, loss(one), value, slope, never)

    return run()
