r"""The true distance of small domains, and other forms of the measures of `jaxcal.dce`.

A domain is a finite set of inputs with prediction and truth: what predictions and labels alone do
not determine. Source: Blasiok et al. (2023), eq. 1, Def. 5.1, 7.1, Theorems 5.5 and 7.14.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.dce.predictions import Binary, atoms, binary, ordered
from jaxcal.dce.smooth import decaying_sums, of_unit_norm
from jaxcal.numerics import largest, safe_sqrt
from jaxcal.read import checks, convert
from jaxcal.typing import Scalar, Vector
from reference.lower_distance import Coupling, differences, solve
from reference.partitions import MOST, Partition, best_partition, mean_labels, positive
from reference.sketches import positive_like


class Domain(eqx.Module):
    """A finite set of k inputs: ``mass`` [k] of sum 1, prediction ``f`` [k], truth
    ``f_star`` [k] = P(y = 1 | x)."""

    mass: Float[np.ndarray, " k"]
    f: Float[np.ndarray, " k"]
    f_star: Float[np.ndarray, " k"]

    def distribution(self) -> tuple[Any, Any, Any]:
        """That of (v, y): predictions, mean labels and weights, as the measures take them."""
        return self.f, self.f_star, self.mass


def true_distance(domain: Domain, *, power: float = 1.0) -> Partition:
    r"""True distance :math:`\min_g (E|f - g|^p)^{1/p}` over calibrated predictors g of the inputs.

    Tries all partitions: at most 10 inputs, ValueError beyond. ``power``: p. Raises ValueError also
    for masses that are negative or do not sum to 1, and for probabilities outside of [0, 1].
    """
    mass, f, f_star = _checked(domain)
    if f.size > MOST:
        raise ValueError(f"domain: all partitions of at most {MOST} inputs, got {f.size}")
    if (power := convert.real(power, "power")) < 1:
        raise ValueError(f"power: wanted p >= 1, got {power}")
    return best_partition(mass, f, f_star, power=power)


def _checked(domain: Domain) -> tuple[Any, Any, Any]:
    """Masses, predictions and truth in float64, or ValueError."""
    if not isinstance(domain, Domain):
        raise TypeError(f"domain: wanted Domain(..), got {convert.say(domain)}")
    mass, f, f_star = (
        np.asarray(convert.array(getattr(domain, name), f"domain: {name}"), float)
        for name in ("mass", "f", "f_star")
    )
    if not mass.shape == f.shape == f_star.shape or f.ndim != 1 or f.size < 1:
        raise ValueError("domain: wanted mass, f and f_star of one shape [k], k >= 1")
    if not (np.all(mass >= 0) and abs(mass.sum() - 1) < 1e-4):
        raise ValueError(
            f"domain: wanted masses >= 0 of sum 1, got the sum {mass.sum():.6g} and the least "
            f"{mass.min():.6g}"
        )
    for name, x in (("f", f), ("f_star", f_star)):
        if not np.all((x >= 0) & (x <= 1)):
            raise ValueError(f"domain: wanted {name} in [0, 1], without NaN, got {x[:MOST]}")
    return mass, f, f_star


def is_calibrated(domain: Domain, *, tolerance: float = 1e-12) -> bool:
    """Whether E[y | f(x)] = f(x) wherever there is mass."""
    tolerance = convert.real(tolerance, "tolerance")
    mass, f, f_star = _checked(domain)
    _, level = np.unique(f, return_inverse=True)
    means = mean_labels(mass, f_star, level)
    return bool(np.all(np.abs(means - f)[mass > 0] <= tolerance))


def lift_lower(coupling: Coupling) -> Domain:
    """Inputs x = (u, v) on which the true distance is the lower one: f = v, and u is calibrated."""
    checks.instance(coupling, Coupling, "coupling")
    pairs, index = np.unique(np.stack([coupling.u, coupling.v]), axis=1, return_inverse=True)
    index = index.reshape(-1)
    mass = np.bincount(index, coupling.mass)
    ones = np.bincount(index, coupling.mass * coupling.y)
    return Domain(mass, pairs[1], ones / mass)


def lift_upper(predictions: Any, targets: Any, *, weights: Any = None) -> Domain:
    """Inputs x = v on which the true distance is the upper one: nothing but f is known of x."""
    distribution = positive(atoms(binary(predictions, targets, weights)))
    return Domain(distribution.mass, distribution.v, distribution.p1 / distribution.mass)


def smooth_ce_linear_program(
    predictions: Any, targets: Any, *, weights: Any = None, seconds: float | None = None
) -> float:
    """Smooth calibration error by its linear program over neighbours (Theorem 7.14).

    The reference for `smooth_ce`, which is the same number in a small part of the time.
    ``seconds``: the most that the solver may take; TimeoutError beyond.
    """
    import scipy.sparse as sparse

    seconds = None if seconds is None else convert.real(seconds, "seconds", above=0)
    distribution = positive(atoms(binary(predictions, targets, weights)))
    v, rho = distribution.v, distribution.rho
    if v.size == 1:
        return float(abs(rho[0]))
    d = differences(v.size, sparse)
    gaps = np.diff(v)
    limits = np.concatenate([gaps, gaps])
    return -solve(-rho, sparse.vstack([d, -d]), limits, (-1, 1), seconds).fun


class GridSmoothCE(eqx.Module):
    """``value`` [] on the grid, and ``error`` []: |value - smCE| is no more than that."""

    value: Scalar
    error: Scalar


def smooth_ce_grid(
    predictions: Any, targets: Any, *, cells: int, weights: Any = None
) -> GridSmoothCE:
    """Smooth calibration error with residuals moved to the nearest of ``cells`` + 1 grid points.

    Exact for the moved residuals; the error bound is E|y - v| / (2 cells). Cost O(n + cells^2).
    Differentiable in the residuals (their places on the grid count as constants).
    """
    return _grid(binary(predictions, targets, weights), convert.integer(cells, "cells"))


@partial(jax.jit, static_argnames="cells")
def _grid(data: Binary, cells: int) -> GridSmoothCE:
    rho = data.w * (data.y - data.v)
    near = jnp.round(jnp.nan_to_num(data.v) * cells).astype(jnp.int32)
    on_grid = jax.ops.segment_sum(rho, near, cells + 1)
    z = jnp.linspace(-1, 1, 2 * cells + 1, dtype=rho.dtype)

    def step(best: Float[Array, " z"], mass: Scalar):
        padded = jnp.pad(best, 1, constant_values=-jnp.inf)
        widest = jnp.maximum(jnp.maximum(padded[:-2], padded[2:]), best)
        return mass * z + widest, None

    best, _ = jax.lax.scan(step, on_grid[0] * z, on_grid[1:])
    return GridSmoothCE(largest(best), jnp.sum(jnp.abs(rho)) / (2 * cells))


class WeightedCE(NamedTuple):
    """``value`` []: the largest of ``errors`` [k], |E[(y - v) w(v)]| for each weight."""

    value: Scalar
    errors: Float[Array, " k"]


def weighted_ce(
    predictions: Any,
    targets: Any,
    functions: Sequence[Callable[[Vector], Array]],
    *,
    weights: Any = None,
) -> WeightedCE:
    """The largest |E[(y - v) w(v)]| over a finite family of functions w of the predictions [n].

    A constant 1 gives |E[y - v]|; signs of all values give ECE. Source: Def. 7.1.
    """
    if not isinstance(functions, Sequence) or not functions or not all(map(callable, functions)):
        raise ValueError("functions: wanted a list of at least one weight function")
    data = binary(predictions, targets, weights)
    rho = data.w * (data.y - data.v)
    errors = jnp.stack([jnp.abs(jnp.sum(rho * w(data.v))) for w in functions])
    return WeightedCE(largest(errors), errors)


def laplace_witness(
    predictions: Any, targets: Any, at: Any, *, bandwidth: Any = 1.0, weights: Any = None
) -> Float[Array, " t"]:
    """The witness of `kernel_ce` with a Laplace kernel at points ``at`` [t] of [0, 1], in
    O((n + t) log n)."""
    data = ordered(binary(predictions, targets, weights))
    bandwidth = positive_like(bandwidth, data.v)
    v, rho = data.v, data.rho
    left, right = decaying_sums(v, rho, bandwidth)
    t = convert.floats(at, "at")
    after = jnp.searchsorted(v, t, side="right")
    i, j = jnp.maximum(after - 1, 0), jnp.minimum(after, v.size - 1)
    below = jnp.where(after > 0, left[i] * jnp.exp(-(t - v[i]) / bandwidth), 0)
    above = jnp.where(after < v.size, right[j] * jnp.exp(-(v[j] - t) / bandwidth), 0)
    return of_unit_norm(below + above, safe_sqrt(jnp.sum(rho * (left + right - rho))))


def kernel_ce_of_pairs(
    predictions: Any, targets: Any, kernel: Callable[[Array, Array], Array], *, weights: Any = None
) -> tuple[Scalar, Scalar]:
    """The square of the kernel calibration error with any kernel of points [1], over all pairs:
    with those of an observation with itself, and without (for equal weights)."""
    data = binary(predictions, targets, weights)
    rho, v = data.w * (data.y - data.v), data.v[:, None]
    gram = jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(v))(v)
    terms = rho[:, None] * gram * rho[None]
    return jnp.sum(terms), (jnp.sum(terms) - jnp.trace(terms)) / (1 - jnp.sum(data.w**2))
