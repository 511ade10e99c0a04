"""Two forecasters of a target given an input: a regression, and a density without its constant."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.read import Units, Unnormalized
from jaxcal.typing import Distribution, Key, Point, Points, Scalar


class Regression(NamedTuple):
    """``y = intercept + slope x + noise`` with one covariance of the noise for all days."""

    slope: Float[Array, "d q"]
    intercept: Point
    covariance: Float[Array, "d d"]

    @classmethod
    def fit(cls, inputs: Float[Array, "n q"], targets: Points) -> "Regression":
        """Least squares, and the covariance of the residuals."""
        n, q = inputs.shape
        x_mean, y_mean = jnp.mean(inputs, axis=0), jnp.mean(targets, axis=0)
        xs, ys = inputs - x_mean[None], targets - y_mean[None]
        slope = jnp.linalg.lstsq(xs, ys)[0].T
        residuals = ys - xs @ slope.T
        return cls(slope, y_mean - slope @ x_mean, residuals.T @ residuals / (n - q - 1))

    def predict(self, inputs: Float[Array, "n q"]) -> Distribution:
        """One Gaussian a row of ``inputs``, as a numpyro distribution with batch shape [n]."""
        from numpyro.distributions import MultivariateNormal  # numpyro only where it is used

        return MultivariateNormal(
            inputs @ self.slope.T + self.intercept[None], covariance_matrix=self.covariance
        )


class Layer(NamedTuple):
    """``weight x + bias``."""

    weight: Float[Array, "after before"]
    bias: Float[Array, " after"]

    def __call__(self, x: Float[Array, " before"]) -> Float[Array, " after"]:
        return self.weight @ x + self.bias


class Energy(eqx.Module):
    r"""A density known up to its constant, ``log f(y | x) = -E(x, y)``.

    .. math:: E(x, y) = \tfrac12 \|u\|^2 - g(x, u), \qquad u = L^\top (t - A x - b)

    in standard units t of the targets and of the inputs. A, b and L start as the Gaussian
    regression and g, a network of tanh, at 0. g is bounded, so the square makes a proper density;
    its integral has no formula and is never needed.
    """

    layers: tuple[Layer, ...]
    center: Layer
    root: Float[Array, "d d"]
    input_units: Units
    target_units: Units

    @classmethod
    def create(cls, key: Key, inputs: Float[Array, "n q"], targets: Points) -> "Energy":
        """The Gaussian regression, with an untrained network of two hidden layers of 32."""
        input_units, target_units = Units.of(inputs), Units.of(targets)
        linear = Regression.fit(input_units.points(inputs), target_units.points(targets))
        q, d = inputs.shape[1], targets.shape[1]
        first, second = jax.random.normal(key, (2, 32, 32), targets.dtype)  # one draw compiles fast
        silent = jnp.zeros(32, targets.dtype)
        layers = (
            Layer(first[:, : q + d] / (q + d) ** 0.5, silent),
            Layer(second / 32**0.5, silent),
            Layer(silent[None], silent[:1]),
        )
        return cls(
            layers,
            Layer(linear.slope, linear.intercept),
            jnp.linalg.cholesky(jnp.linalg.inv(linear.covariance)),
            input_units,
            target_units,
        )

    def __call__(self, x: Float[Array, " q"], y: Point) -> Scalar:
        """``-E(x, y)`` of one day; y in degrees Celsius."""
        return self.standard(self.input_units.points(x), self.target_units.points(y))

    def standard(self, x: Float[Array, " q"], t: Point) -> Scalar:
        """The same in standard units of both."""
        first, second, last = self.layers
        u = jnp.tril(self.root).T @ (t - self.center(x))
        hidden = jnp.tanh(second(jnp.tanh(first(jnp.concatenate([x, u])))))
        return last(hidden)[0] - jnp.sum(u**2) / 2

    def predict(self, inputs: Float[Array, "n q"]) -> Unnormalized:
        """One density a row of ``inputs``; the network serves all of them."""
        return Unnormalized(log_density, (self, inputs), in_axes=(None, 0))


def log_density(params: tuple[Energy, Float[Array, " q"]], y: Point) -> Scalar:
    """``-E(x, y)`` as jaxcal asks for it: parameters of one prediction, then one target."""
    energy, x = params
    return energy(x, y)
