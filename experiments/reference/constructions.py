r"""The paper's examples with their exact distances: what separates one measure from another.

Each function gives a `Domain` (inputs with prediction and truth) or a distribution; ``values``
numbers were derived in closed form, with the corrections that the paper's constants need.
Source: Blasiok et al. (2023), Lemmas 4.5, 4.8, 6.8 and 6.9, Theorem 8.6, Section 10.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.read import convert
from jaxcal.typing import KeyLike
from reference.distances import Domain


class Example(NamedTuple):
    """A domain and the values known for it, by the name of the measure."""

    domain: Domain
    values: dict[str, float]


def quadratic_barrier(alpha: float, *, second: bool = False) -> Example:
    r"""Two truths that predictions and labels cannot tell apart: Lemma 4.5, 0 < alpha <= 1/2.

    They are at distance min(4 alpha^2, alpha) and alpha. (The paper prints 2 alpha^2 for the
    first.)
    """
    mass = np.array([alpha, 0.5 - alpha, 0.5 - alpha, alpha])  # 00, 01, 10, 11
    f = 0.5 + alpha * np.array([1, 1, -1, -1])
    truth = 0.5 - alpha * np.array([1, 1, -1, -1]) if second else np.array([0, 0.5, 0.5, 1])
    values = {
        "true": alpha if second else min(4 * alpha**2, alpha),
        "upper": alpha,
        "lower": 4 * alpha**2 / (1 + 2 * alpha),
        "smooth": 2 * alpha**2,
        "ece": 2 * alpha,
        "interval": 2 * alpha,
        "surrogate": 2 * alpha,
        "laplace": alpha * (2 * (1 - np.exp(-2 * alpha))) ** 0.5,
    }
    return Example(Domain(mass, f, truth), values)


def two_points(epsilon: float) -> Example:
    r"""Lemma 4.8, 0 < epsilon < 1/2: at epsilon = 0 the prediction 1/2 is calibrated; ECE jumps."""
    e = epsilon
    values = {
        "true": min(e, 0.5 - e),
        "upper": min(e, 0.5 - e),
        "lower": e * (1 - 2 * e),
        "smooth": e * (0.5 - e),
        "ece": 0.5 - e,
        "interval": min(2 * e, 0.5 - e),
        "laplace": (0.5 - e) * ((1 - np.exp(-2 * e)) / 2) ** 0.5,
    }
    halves = np.array([0.5, 0.5])
    return Example(Domain(halves, np.array([0.5 - e, 0.5 + e]), np.array([0.0, 1.0])), values)


def intervals_apart(alpha: float) -> Example:
    r"""Lemma 6.8, 0 < alpha < 1/4: interval calibration error 2 alpha + alpha^2, distance only
    5 alpha^2, by groups that are not intervals."""
    a, b = alpha, alpha / 2
    mass = np.array([a, 0.5 - a, 0.5 - a, a])
    f = 0.5 + np.array([a + b, a, -a, -a - b])
    values = {
        "true": 5 * a**2,
        "upper": 5 * a**2,
        "lower": a**2 * (5 + 2 * a) / (1 + 2 * a),
        "smooth": 2.5 * a**2 * (1 + a),
        "ece": 2 * a + a**2,
        "interval": 2 * a + a**2,
        "surrogate": 2 * a + a**2,
    }
    return Example(Domain(mass, f, np.array([0, 0.5, 0.5, 1])), values)


def jumping_intervals(epsilon: float) -> Example:
    r"""Lemma 6.9: four inputs at distance ``epsilon`` < 1/48 (0 allowed) from a tie, where the
    interval calibration error jumps from 1/48 to 1/24."""
    a, b, e = 1 / 6, 1 / 48, epsilon
    f = 0.5 + np.array([-b, -e, e, b])
    truth = 0.5 + np.array([-b + a, -e - a, e + 2 * a, b - 2 * a])
    tied = epsilon == 0
    values = {
        "ece": 1 / 6 if tied else 0.25,
        "interval": 2 * b if tied else b - e,
        "upper": (b - e) / 2,
        "smooth": (b - e) / 8,
    }
    return Example(Domain(np.full(4, 0.25), f, truth), values)


def smooth_above(eta: float, t: float) -> Example:
    r"""A distribution whose smooth calibration error exceeds its distance, by a factor up to 2:
    prediction eta with label 0, and rarely eta + t with label 1."""
    values = {"true": eta * t, "upper": eta * t, "lower": eta * t}
    values["smooth"] = eta * t * (2 - eta - t)
    return Example(
        Domain(np.array([1 - eta, eta]), np.array([eta, eta + t]), np.array([0.0, 1.0])), values
    )


def constant(prediction: float, rate: float) -> Example:
    """One prediction for all: every measure is |rate - prediction|."""
    names = ["true", "upper", "lower", "smooth", "laplace", "interval", "surrogate", "ece"]
    value = abs(rate - prediction)
    domain = Domain(np.ones(1), np.array([prediction]), np.array([rate]))
    return Example(domain, dict.fromkeys(names, value))


def hidden_from_gaussians(epsilon: float, *, points: int = 4000) -> Domain:
    r"""Theorem 8.6: predictions uniform on [1/4, 3/4] whose truth wiggles at scale epsilon around
    them, which a Gaussian kernel hardly sees. ``points`` midpoints."""
    f = 0.25 + (np.arange(points) + 0.5) / (2 * points)
    t = f - 0.5
    truth = f + np.cos(t / epsilon) * np.exp(-(t**2) / epsilon) / 4
    return Domain(np.full(points, 1 / points), f, truth)


def tempered(f: Array, beta: Any) -> Array:
    """f^beta / (f^beta + (1 - f)^beta): the truth f at inverse temperature ``beta``."""
    return jax.nn.sigmoid(beta * (jnp.log(f) - jnp.log1p(-f)))


def tempered_sample(
    key: KeyLike, n: int, beta: Any
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Section 10: n predictions and labels with truth uniform on (0, 1); ``beta`` above 1 is
    overconfident, below 1 underconfident, 1 calibrated."""
    truth_key, label_key = jax.random.split(convert.key(key))
    f = jax.random.uniform(truth_key, (n,), minval=jnp.finfo(jnp.result_type(float)).tiny)
    return tempered(f, beta), jax.random.bernoulli(label_key, f).astype(f.dtype)


def tempered_population(beta: float, *, points: int = 20000) -> Domain:
    """The distribution of Section 10 on midpoints of the truth; ``beta`` may be infinite."""
    f = (np.arange(points) + 0.5) / points
    with np.errstate(over="ignore"):
        v = 1 / (1 + np.exp(-beta * np.log(f / (1 - f)))) if beta < np.inf else (f > 0.5) * 1.0
    return Domain(np.full(points, 1 / points), v, f)
