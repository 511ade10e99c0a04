"""Centres and scales from moments of predictions, moments from the user, or moments of draws."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.divergences.vectors import NodeScores
from jaxcal.read import Draws, Standardized, convert
from jaxcal.read.families import Normals, distribution_of, full, mean_and_covariance
from jaxcal.read.standardized import in_units_of_data
from jaxcal.typing import Predictions
from jaxcal.whitening.contract import FORMS, Whitening, diagonals, in_units_of
from jaxcal.whitening.precisions import bounded_matrices


def _moment(name: str) -> Any:
    """Return a field of floating-point arrays or None."""

    def read(value: object) -> Array | None:
        return None if value is None else convert.floats(value, name)

    return eqx.field(default=None, converter=read)


class Moments(eqx.Module):
    """Centre and scale by the mean and covariance of each prediction.

    Both must be functions of the predictions alone. Without arguments they come from the
    predictions: normals, Laplace distributions, their mixtures, distributions with a ``mean`` and
    ``variance``, and `jaxcal.Draws`.

    Args:
        mean: Means in the units of the targets, [n, *event].
        covariance: Variances [n, *event] or covariance matrices [n, d, d], in the units of the
            targets squared.
        form: "full" or "diagonal".

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> widths = jnp.exp(jax.random.normal(jax.random.key(0), (100,)))
        >>> targets = 2 * widths * jax.random.normal(jax.random.key(1), (100,))
        >>> whiten = jaxcal.whitening.Moments()
        >>> jaxcal.skce_test(2, dist.Normal(jnp.zeros(100), widths), targets, whiten=whiten).verdict
        'rejected'
    """

    mean: Array | None = _moment("mean")
    covariance: Array | None = _moment("covariance")
    form: str = eqx.field(default="full", static=True)
    needs_nodes: bool = eqx.field(default=False, init=False, static=True)

    def __check_init__(self):
        convert.choice(self.form, "form", FORMS)
        if (self.mean is None) != (self.covariance is None):
            raise ValueError("mean and covariance: give both, or none to take those offered")

    def fit(self, predictions: Predictions, at_nodes: NodeScores | None) -> Whitening:
        mean, covariances = full(self._moments(predictions))
        if mean.ndim == 1:  # one density for all targets
            mean, covariances = mean[None], covariances[None]
        if self.form == "diagonal":
            covariances = diagonals(covariances)
        bounded, clamped = bounded_matrices(covariances, precisions=False)
        return in_units_of(mean, bounded, clamped)

    def _moments(self, predictions: Any) -> Normals:
        if self.mean is not None:
            return _moments_in_units(self.mean, self.covariance, predictions)
        offered = mean_and_covariance(distribution_of(predictions))
        if offered is not None:
            return offered
        original = in_units_of_data(predictions)
        if isinstance(original, Draws):
            return _of_draws(original, predictions, self.form)
        try:
            mean = original.mean
            covariance = getattr(original, "covariance_matrix", None)
            covariance = original.variance if covariance is None else covariance
        except (AttributeError, NotImplementedError):
            raise TypeError(
                f"whiten: {type(original).__name__} offers no mean and variance; give "
                f"Moments(mean, covariance), or use Regression() or Landing()"
            ) from None
        return _moments_in_units(mean, covariance, predictions)


def _moments_in_units(mean: Any, covariance: Any, predictions: Standardized) -> Normals:
    """Convert moments in the units of the targets to the units of the predictions."""
    d = predictions.units.scale.size
    mean = jnp.asarray(mean)
    n = mean.shape[0]
    covariance = jnp.asarray(covariance)
    matrices = covariance.shape == (n, d, d) and mean.shape != (n, d, d)
    if mean.size != n * d or (covariance.size != n * d and not matrices):
        raise ValueError(
            f"whiten: wanted a mean of {d} coordinates a prediction, and variances of that shape "
            f"or covariances [{n}, {d}, {d}], got shapes {mean.shape} and {covariance.shape}"
        )
    shape = (n, d, d) if matrices else (n, d)
    return distribution_of(
        Standardized(
            Normals(mean.reshape(n, d), covariance.reshape(shape)),
            predictions.units,
            predictions.event,
        )
    )


def _of_draws(draws: Draws, predictions: Standardized, form: str) -> Normals:
    """Return moments of the first half of the draws; kernel means use the other half."""
    half = draws.samples.shape[1] // 2
    points = draws.samples[:, :half].reshape(len(draws.samples), half, -1)
    points = predictions.units.points(points)
    d = points.shape[-1]
    needed = 2 if form == "diagonal" else 2 * d
    if half < needed:
        raise ValueError(
            f"whiten: Moments(form={form!r}) of draws needs {2 * needed} of each prediction in "
            f"{d} dimensions (half of them), got {draws.samples.shape[1]}"
        )
    gaps = points - jnp.mean(points, axis=1, keepdims=True)
    covariances = jnp.einsum("nmi,nmj->nij", gaps, gaps) / (half - 1)
    return Normals(jnp.mean(points, axis=1), covariances)
