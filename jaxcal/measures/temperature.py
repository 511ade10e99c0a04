r"""Negative log likelihood of :math:`q \propto p^{1/T}`, and the temperature T that minimizes it.

Predictions become wider for T > 1 and narrower for T < 1. The mean of a continuous prediction and
the most likely class stay the same. Densities p are with respect to :math:`dx / (x (1 - x))` for
Beta, :math:`\prod_i dx_i / x_i` for Dirichlet, and Lebesgue measure for other predictions.
Source: Widmann et al. (2021), Appendix F.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxcal.read import checks, convert
from jaxcal.read.scores import is_distribution, log_densities_at
from jaxcal.results import Result, Sentences, counted, recorded, rows_in_one_order
from jaxcal.typing import ArrayLike, PredictionsLike, Scalar

LAST = 20  # largest absolute logarithm of a temperature
IMPOSSIBLE = -1e12  # replaces the logarithm of probability 0; temperatures stay below 1e9


class TemperatureFit(Result):
    """The temperature with the smallest negative log likelihood of n held-out targets.

    Attributes:
        temperature: Fitted temperature T, []; infinite or 0 if the search reached its limit, NaN if
            the likelihood is not finite.
        before: Mean negative log likelihood at T = 1, [].
        after: Mean negative log likelihood at the fitted T, [].
        slope: Derivative of ``after`` with respect to log T, []; 0 at an optimum.
        impossible: Number of targets whose class has probability 0 (always 0 for distributions),
            []. The fit replaces these probabilities by the smallest positive number.
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
        certain = np.abs(np.asarray(self.after)) < 1e-9  # with all probabilities 1, the slope is 0
        return [
            (
                counted(
                    "{} {target|targets} had probability 0, which no temperature changes; the fit "
                    "counts {it|them} as the smallest positive number: if a softmax rounded "
                    "{it|them} to 0, take it again in float64 [impossible-targets]",
                    never,
                ),
                never > 0,
            ),
            (
                "the likelihood is not finite, so there is no temperature [no-temperature]",
                bool(np.isnan(t).any()),
            ),
            (
                "no finite temperature is best: targets of probability 0, as a tree or few "
                "neighbours give them, ask for ever larger ones; smooth the probabilities first"
                " [no-optimum]",
                bool(np.any(np.isinf(t))) and never > 0,
            ),
            (
                "no finite temperature is best: equal probabilities fit better than these "
                "predictions at any temperature; are classes swapped? [no-optimum]",
                bool(np.any(np.isinf(t))) and never == 0,
            ),
            (
                "the search has not ended at an optimum: is every target predicted perfectly (then "
                "any lower temperature is better)? [no-optimum]",
                bool(np.any(slope > 1e-2) or np.any(t < 1e-3) or np.any(certain)),
            ),
        ]

    def _batch_lines(self) -> list[str]:
        t = np.asarray(self.temperature)
        return [f"{t.size} temperatures from {t.min():.4g} to {t.max():.4g}"]

    def _lines(self) -> list[str]:
        t = float(self.temperature)
        words = "predictions were too narrow" if t > 1 else "predictions were too wide"
        if np.isnan(t):
            words = "there is none"
        elif self.after >= self.before:
            words = "no temperature is better than none"
        return [
            f"temperature {t:.4g}   ({words})",
            f"  negative log likelihood {float(self.before):.4g} before, {float(self.after):.4g} "
            f"after",
        ]


@rows_in_one_order
def nll(predictions: PredictionsLike, targets: ArrayLike) -> Scalar:
    """Return the mean negative log likelihood (NLL) of n targets.

    Args:
        predictions: A numpyro distribution with batch shape [n], or an object with its ``log_prob``
            and shapes. TypeError for unnormalized densities, which have no likelihood.
        targets: Targets, [n] or [n, ...]; integer classes for distributions over classes.

    Returns:
        The mean, []; infinite if a target has density 0.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> predictions = dist.Normal(jnp.zeros(3), 1.0)
        >>> round(float(jaxcal.measures.nll(predictions, jnp.zeros(3))), 3)
        0.919
    """
    checks.of_jax(predictions)
    if not is_distribution(predictions):
        raise TypeError(
            f"predictions: a likelihood needs a normalized density such as a numpyro distribution, "
            f"got {type(predictions).__name__}"
        )
    return -jnp.mean(log_densities_at(predictions, _matching(predictions, targets)))


def _matching(predictions: Any, targets: ArrayLike) -> Array:
    """Return targets as an array; ValueError if the shape does not match the predictions."""
    ys = convert.numbers(targets, "targets")
    if further := len(predictions.batch_shape[1:]):
        raise ValueError(
            f"predictions: wanted batch shape [n], got {predictions.batch_shape}; .to_event"
            f"({further}) makes the last batch axes an event"
        )
    shape = (*predictions.batch_shape, *predictions.event_shape)
    if ys.shape != shape and not (predictions.batch_shape == () and ys.shape[1:] == shape):
        raise ValueError(f"targets: wanted shape {shape} to match the predictions, got {ys.shape}")
    return ys


def with_temperature(predictions: PredictionsLike, temperature: ArrayLike) -> Any:
    r"""Return the predictions at temperature T > 0: densities :math:`\propto p^{1/T}`.

    =========================  ==========================
    class probabilities        softmax(log p / T)
    Categorical, Bernoulli     logits / T
    Normal, MultivariateNormal covariance times T
    Laplace                    scale times T
    your own                   ``at_temperature(T)``
    Beta, Dirichlet            concentrations / T
    =========================  ==========================

    Densities of Beta predictions are with respect to :math:`dx / (x (1 - x))`, those of Dirichlet
    predictions with respect to :math:`\prod_i dx_i / x_i`.

    Args:
        predictions: Class probabilities [n, m], an object with ``at_temperature``, or a numpyro
            distribution listed above, also inside ``.to_event`` and ``.expand``.
        temperature: Temperature T, above 0.

    Returns:
        Predictions of the same kind.

    Source: Widmann et al. (2021), Definition F.1.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> cold = jnp.array([[0.8, 0.2]])
        >>> warm = jaxcal.measures.with_temperature(cold, 2.0)  # odds 4 : 1 become 2 : 1
        >>> [round(p, 3) for p in warm[0].tolist()]
        [0.667, 0.333]
    """
    distribution: Any = predictions
    t = convert.number(temperature, "temperature", above=0)
    if hasattr(distribution, "at_temperature"):
        return distribution.at_temperature(t)
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
            f"probabilities, an object with at_temperature or numpyro's {', '.join(FAMILIES)}"
        )
    return FAMILIES[name](distribution, t)


def _logits(p: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """Return log probabilities, with -1e12 in place of log 0. Derivatives with respect to the
    temperature T are then finite, and softmax gives 0 at every T below 1e9."""
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

    Apply the result to other data by ``with_temperature(predictions, fit.temperature)``.
    Probabilities of 0 stay 0 at every temperature; ``impossible`` counts targets of such classes.

    Args:
        predictions: As in `with_temperature`.
        targets: Targets, [n] or [n, ...]; integer classes for class probabilities.
        steps: Number of steps of L-BFGS.

    Returns:
        `TemperatureFit`.

    Cost: a few evaluations of the likelihood per step.

    Source: Guo et al. (2017), Section 4.2; Widmann et al. (2021), App. F.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> targets = 2 * jax.random.normal(jax.random.key(0), (200,))
        >>> fit = jaxcal.measures.fit_temperature(dist.Normal(jnp.zeros(200), 1.0), targets)
        >>> bool(abs(fit.temperature / jnp.mean(targets**2) - 1) < 1e-3)  # the variance
        True
    """
    steps = convert.integer(steps, "steps")
    if not hasattr(predictions, "batch_shape"):
        return most_likely(*as_distribution(predictions, targets), steps=steps)
    ys = convert.numbers(targets, "targets")
    return most_likely(predictions, ys, jnp.zeros((), int), steps=steps)


def as_distribution(predictions: Any, targets: ArrayLike) -> tuple[Any, Array, Int[Array, ""]]:
    """Return class probabilities as a categorical distribution, the targets as integers, and the
    number of targets whose probability of 0 was replaced by the smallest positive number."""
    p = checks.probabilities(predictions)
    ys = checks.labels(targets, p.shape[0], p.shape[1])
    impossible = jax.nn.one_hot(ys, p.shape[1], dtype=bool) & (p == 0)
    floored = jnp.where(impossible, jnp.finfo(p.dtype).tiny, p)
    return _new("CategoricalLogits", logits=_logits(floored)), ys, jnp.sum(impossible)


@eqx.filter_jit
def most_likely(
    predictions: Any,
    ys: Array,
    never: Int[Array, ""],
    weights: Float[Array, " n"] | None = None,
    *,
    steps: int = 40,
) -> TemperatureFit:
    """Fit T to ``ys`` with optional ``weights`` [n]; ``never`` is returned as ``impossible``."""
    import optax

    def mean(predictions: Any) -> Scalar:
        if weights is None:
            return nll(predictions, ys)
        return -jnp.sum(weights * predictions.log_prob(ys)) / jnp.sum(weights)

    def loss(log_t: Array) -> Scalar:
        return mean(with_temperature(predictions, jnp.exp(log_t)))

    search: Any = optax.lbfgs()
    value_and_slope: Any = optax.value_and_grad_from_state(loss)

    def step(_: object, carry: PyTree) -> PyTree:
        log_t, state = carry
        value, slope = value_and_slope(log_t, state=state)
        move, state = search.update(slope, state, log_t, value=value, grad=slope, value_fn=loss)
        return jnp.clip(log_t + move, -LAST, LAST), state

    one = jnp.zeros((), jax.eval_shape(lambda: mean(predictions)).dtype)
    log_t, state = jax.lax.fori_loop(0, steps, step, (one, search.init(one)))
    value, slope = value_and_slope(log_t, state=state)
    t = jnp.where(log_t >= LAST, jnp.inf, jnp.where(log_t <= -LAST, 0, jnp.exp(log_t)))
    t = jnp.where(jnp.isfinite(value), t, jnp.nan)
    return TemperatureFit(t, loss(one), value, slope, never)
