r"""Data with a known calibration error: the simulation of the paper, and a scalar one.

Source: Gruber and Bach (2025), Sec. 5.1 (softmax of tempered Dirichlet draws).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.read import convert
from jaxcal.squared_ce.reductions import Reduced, binary
from jaxcal.typing import KeyLike


class Tempered(NamedTuple):
    """``probabilities`` [n, m] of the classifier, ``labels`` [n], ``truth`` [n, m] the conditional
    class probabilities, which the classifier hides by a temperature."""

    probabilities: Float[Array, "n m"]
    labels: Int[Array, " n"]
    truth: Float[Array, "n m"]


def tempered_dirichlet(
    key: KeyLike, n: int, *, classes: int = 5, concentration: float = 0.04, power: float = 0.3
) -> Tempered:
    """P_i from Dir(concentration, ..), Y_i from P_i, predictions softmax(power log P_i).

    Drawn in log space: for small concentrations most entries of P are below the smallest float.
    With the default settings the squared canonical error is 0.063278 and the Brier score 0.19664.
    """
    draw_key, label_key = jax.random.split(convert.key(key))
    alpha = jnp.full((classes,), concentration, jnp.result_type(float))
    log_p = jax.nn.log_softmax(jax.random.loggamma(draw_key, alpha, (n, classes)), axis=1)
    labels = jax.random.categorical(label_key, log_p)
    return Tempered(jax.nn.softmax(power * log_p, axis=1), labels, jnp.exp(log_p))


def temperature_residual(theta: Any, inputs: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """``p - softmax((10 / 3) theta log p)``: the true residual of `tempered_dirichlet` at
    theta = 1, and 0 at theta = 0.3. Entries of p that are exactly 0 stay 0."""
    positive = inputs > 0
    safe = jnp.log(jnp.where(positive, inputs, 1.0))
    logits = jnp.where(positive, theta / 0.3 * safe, -jnp.inf)
    return inputs - jax.nn.softmax(logits, axis=1)


def squared_confidence(key: KeyLike, n: int) -> Reduced:
    """Confidences c uniform on [0, 1] for events of probability c^2.

    The squared error is E (c - c^2)^2 = 1 / 30, the Brier score 1 / 6.
    """
    c_key, z_key = jax.random.split(convert.key(key))
    c = jax.random.uniform(c_key, (n,), jnp.result_type(float))
    z = jax.random.uniform(z_key, (n,), jnp.result_type(float)) < c**2
    return binary(c, z.astype(jnp.int32))
