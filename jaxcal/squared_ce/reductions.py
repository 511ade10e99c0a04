"""Reduce class probabilities and labels to a regression problem: inputs, outcomes, residuals.

A notion of calibration states that the conditional mean of an outcome given an input equals the
input. Notions differ in their inputs and outcomes, see `reduce`.
Source: Gruber and Bach (2025), eq. 6 to 9, and Sec. 3.1 for the residuals.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.measures import classes
from jaxcal.read import checks, convert
from jaxcal.results import rows_in_one_order
from jaxcal.typing import ArrayLike


class Reduced(eqx.Module):
    """Regression problem of a notion of calibration, which states E[outcome | input] = input.

    The residuals D = inputs - outcomes have mean 0 given the input if and only if the notion
    holds. `reduce` returns it.

    Attributes:
        inputs: Predictions, [n, d]: d classes for the canonical notion, d = 1 for top-label and
            binary. The class-wise notion has one problem with d = 1 per class, [m, n, 1].
        outcomes: Outcomes, of the same shape: indicators of classes, or of correct predictions.
        notion: Name of the notion.
    """

    inputs: Float[Array, "*problems n d"]
    outcomes: Float[Array, "*problems n d"]
    notion: str = eqx.field(static=True)

    @property
    def residuals(self) -> Float[Array, "*problems n d"]:
        return self.inputs - self.outcomes

    @property
    def n(self) -> int:
        return self.inputs.shape[-2]

    @property
    def brier(self) -> Float[Array, "*problems"]:
        """Mean squared norm of the residuals, one per problem: the Brier score of the class
        probabilities (canonical notion) or of the single probability."""
        return jnp.mean(jnp.sum(self.residuals**2, axis=-1), axis=-1)

    def take(self, rows: PyTree) -> "Reduced":
        """Return the problem restricted to the observations ``rows``: indices or a slice."""
        rows = np.arange(self.n)[rows] if isinstance(rows, slice) else rows
        inputs, outcomes = _rows((self.inputs, self.outcomes), rows)
        return Reduced(inputs, outcomes, self.notion)

    def problems(self) -> list["Reduced"]:
        """Return a list of single problems: m for the class-wise notion, otherwise this one."""
        if self.inputs.ndim == 2:
            return [self]
        pairs = zip(self.inputs, self.outcomes, strict=True)
        return [Reduced(inputs, outcomes, self.notion) for inputs, outcomes in pairs]


@jax.jit
def _rows(arrays: tuple[Array, Array], rows: Array) -> tuple[Array, Array]:
    return jax.tree.map(lambda leaf: leaf[..., rows, :], arrays)


@rows_in_one_order
def reduce(predictions: ArrayLike, targets: ArrayLike, notion: str) -> Reduced:
    """Return the regression problem of a notion of calibration.

    Args:
        predictions: Class probabilities with rows of sum 1, [n, m]; or, for two classes, the
            probabilities of class 1, [n].
        targets: Classes 0, .., m - 1, [n].
        notion: "canonical": P(Y = i | f(X) = p) = p_i for targets Y, predictions f(X) and all i;
            inputs [n, m]. For m = 2 the squared error is twice that of "binary", the risk 4 times.
            "top-label": P(Y = argmax f | max f = c) = c; inputs [n, 1]. Of equal largest
            probabilities, the first class is predicted.
            "class-wise": P(Y = k | f_k(X) = c) = c, one problem per class; inputs [m, n, 1]. The
            class-wise error is the sum of the squared errors of these problems.
            "binary": P(Y = 1 | f_1(X) = c) = c, for two classes; inputs [n, 1].

    Returns:
        `Reduced`.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> p = jnp.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
        >>> jaxcal.squared_ce.reduce(p, jnp.array([0, 2]), "top-label").notion
        'top-label'
    """
    functions = {
        "canonical": canonical,
        "top-label": top_label,
        "class-wise": class_wise,
        "binary": binary,
    }
    convert.choice(notion, "notion", tuple(functions))
    return functions[notion](predictions, targets)


def canonical(predictions: ArrayLike, targets: ArrayLike) -> Reduced:
    """Return the canonical problem: inputs are probability vectors [n, m], outcomes one-hot."""
    p = checks.probabilities(predictions, "predictions", binary=True)
    y = checks.labels(targets, p.shape[0], p.shape[1], "targets")
    return Reduced(p, jax.nn.one_hot(y, p.shape[1], dtype=p.dtype), "canonical")


def top_label(predictions: ArrayLike, targets: ArrayLike) -> Reduced:
    """Return the top-label problem: inputs are confidences [n, 1]; outcomes are 1 if correct."""
    confidence, correct = classes.confidences(predictions, targets)
    return Reduced(confidence[:, None], correct.astype(confidence.dtype)[:, None], "top-label")


def class_wise(predictions: ArrayLike, targets: ArrayLike) -> Reduced:
    """Return the class-wise problems, one per class against the rest: inputs [m, n, 1]."""
    vectors = canonical(predictions, targets)
    return Reduced(vectors.inputs.T[..., None], vectors.outcomes.T[..., None], "class-wise")


def binary(predictions: ArrayLike, targets: ArrayLike) -> Reduced:
    """Return the binary problem: inputs are probabilities of class 1, [n, 1]."""
    p = checks.probabilities(predictions, "predictions", binary=True)
    if p.shape[1] != 2:
        raise ValueError(
            f"predictions: the notion 'binary' is that of two classes or of n probabilities of "
            f"class 1, got shape {p.shape}"
        )
    y = checks.labels(targets, p.shape[0], 2, "targets")
    return Reduced(p[:, 1:], y.astype(p.dtype)[:, None], "binary")
