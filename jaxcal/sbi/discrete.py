"""Test the probabilities of a discrete parameter, given x and all other parameters."""

from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.entries.moments import standardized
from jaxcal.nulls.contract import p_value
from jaxcal.results import Result, Sentences, TestResult
from jaxcal.skce import skce_test
from jaxcal.typing import Contents, Key, Scalar

DRAWS = 9999  # times that all values are drawn from their probabilities; least p-value 1e-4


class DiscreteParameter(Result):
    """Results of three tests of a discrete parameter's probabilities, given x and all others.

    Attributes:
        calibrated: Result of `skce_test` for the probabilities of the k values.
        p_along: P-value of all ``errors`` together, from simulated values; valid for every n, [].
        p_excluded: P-value of the least probable observed value, [] (Bonferroni over the n pairs).
        claimed: Mean predicted probability of each value, [k].
        actual: Share of pairs in which each value is observed, [k].
        errors: [k, f]; entry (v, j) is the sum over pairs of (1[v is observed] - probability of v)
            times feature j, divided by the standard deviation of this sum under calibration.
        p_errors: P-value of each error, from the same simulations, corrected for all k f errors.
        values: The k values.
        features: Names of the f features: "" for the constant 1, then x[0], .., other parameters.
        name: Name of the parameter.
    """

    _scalar: ClassVar[str] = "p_value"
    _rows: ClassVar[tuple[str, ...]] = ("values", "claimed", "actual")

    calibrated: TestResult
    p_along: Float[Array, ""]
    p_excluded: Float[Array, ""]
    claimed: Float[Array, " k"]
    actual: Float[Array, " k"]
    errors: Float[Array, "k f"]
    p_errors: Float[Array, "k f"]
    values: tuple[float, ...] = eqx.field(static=True)
    features: tuple[str, ...] = eqx.field(static=True)
    name: str = eqx.field(static=True)

    @property
    def p_value(self) -> Scalar:
        """Combined p-value of the three tests (Bonferroni), []. The p-value of ``calibrated`` is
        replaced by 1 if its verdict is "cannot tell". Outside of jit only."""
        each = jnp.stack([self.calibrated.p_counted, self.p_along, self.p_excluded])
        return jnp.minimum(1.0, len(each) * jnp.min(each, axis=0))

    def findings(self, level: float) -> list[str]:
        """Return a sentence on the largest error of each value, if its p <= ``level``."""
        said: list[str] = []
        each = zip(self.values, self.claimed, self.actual, self.errors, self.p_errors, strict=True)
        for value, claimed, actual, errors, p in each:
            strongest = int(np.argmax(np.abs(np.asarray(errors))))
            if not float(p[strongest]) <= level:
                continue
            what, where = f"{self.name} = {value:g}", self.features[strongest]
            if where:
                way = "low" if float(errors[strongest]) > 0 else "high"
                said.append(f"the probability of {what} is too {way} where {where} is large")
            else:
                said.append(
                    f"{what} is claimed with probability {float(claimed):.2f} on average, and is "
                    f"true in {float(actual):.2f} of the pairs"
                )
        return said

    def _sentences(self) -> Sentences:
        return [(f"{self.name}: {text}", True) for text in self.calibrated.warnings()]

    def _contents(self) -> Contents:
        return super()._contents() | {"p_value": self.p_value}

    def _lines(self) -> list[str]:
        return [
            f"{self.name}, {len(self.values)} values: p = {float(self.p_value):.2g}",
            f"  probabilities calibrated   p = {float(self.calibrated.p_value):.2g}",
            f"  errors along x and others  p = {float(self.p_along):.2g}",
            f"  values of low probability  p = {float(self.p_excluded):.2g}",
        ]


def of_probabilities(
    key: Key,
    probabilities: Float[Array, "n k"],
    place: Int[Array, " n"],
    inputs: Float[Array, "n q"],
    level: float,
    *,
    values: tuple[float, ...],
    features: tuple[str, ...],
    name: str,
) -> DiscreteParameter:
    """Test the probabilities of k values. ``place`` [n] holds the index of the observed value of
    each pair; ``inputs`` are features along which errors may vary, with names ``features``.

    Cost: n k q multiplications for each of `DRAWS` draws; memory n (k + q).
    """
    test_key, draw_key = jax.random.split(key)
    p_along, p_excluded, errors, p_errors = _along(draw_key, probabilities, place, inputs)
    return DiscreteParameter(
        skce_test(test_key, probabilities, place, level=level),
        p_along,
        p_excluded,
        jnp.mean(probabilities, axis=0),
        jnp.bincount(place, length=len(values)) / len(place),
        errors,
        p_errors,
        values,
        ("", *features),
        name,
    )


@partial(jax.jit, static_argnames="draws")
def _along(
    key: Key,
    probabilities: Float[Array, "n k"],
    place: Int[Array, " n"],
    inputs: Float[Array, "n q"],
    draws: int = DRAWS,
) -> tuple[Scalar, Scalar, Float[Array, "k f"], Float[Array, "k f"]]:
    """Return ``p_along``, ``p_excluded``, ``errors`` and ``p_errors`` of `DiscreteParameter`."""
    n, k = probabilities.shape
    features = jnp.concatenate([jnp.ones((n, 1), inputs.dtype), standardized(inputs)], axis=1)
    variances = (probabilities * (1 - probabilities)).T @ features**2

    def errors_of(place: Array) -> Float[Array, "k f"]:
        residuals = jax.nn.one_hot(place, k, dtype=features.dtype) - probabilities
        return residuals.T @ features / jnp.sqrt(jnp.where(variances > 0, variances, jnp.inf))

    def redrawn(key: Key) -> tuple[Scalar, Scalar]:
        errors = errors_of(jax.random.categorical(key, jnp.log(probabilities), axis=1))
        return _evidence(errors), jnp.max(jnp.abs(errors))

    errors = errors_of(place)
    of_draws, largest = jax.lax.map(redrawn, jax.random.split(key, draws))
    # sums of equal values are rounded differently in a loop: they are equal up to rounding
    (p_along,) = p_value(_evidence(errors)[None], of_draws[None], ties=True)
    each = jnp.abs(errors).ravel()
    largest = jnp.broadcast_to(largest, (len(each), draws))
    p_errors = p_value(each, largest, ties=True).reshape(errors.shape)
    of_place = jnp.take_along_axis(probabilities, place[:, None], axis=1)
    at_most = jnp.sum(jnp.where(probabilities <= of_place, probabilities, 0), axis=1)
    return p_along, jnp.minimum(1.0, n * jnp.min(at_most)), errors, p_errors


def _evidence(errors: Float[Array, "k f"]) -> Scalar:
    """Return log(sum_e exp(e^2 / 4)) over errors e: up to a constant, log of the sum of ratios of
    N(0, 2) to N(0, 1) densities. It is large if one error is large or many are moderate."""
    return jax.nn.logsumexp(errors**2 / 4)
