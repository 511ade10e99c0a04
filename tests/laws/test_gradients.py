"""Derivatives are the slopes of what is returned: through units, preconditioners and medians."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxcal import Unnormalized, kccsd, kcsd, ksd
from jaxcal.ckce import ckce
from jaxcal.read import Units
from jaxcal.skce import skce

N = 12
KEY = jax.random.key(0)
RNG = np.random.default_rng(3)
MEAN, YS, MOVE, TURN = (jnp.asarray(RNG.normal(size=(N, 2))) for _ in range(4))
WIDTH = jnp.asarray(RNG.uniform(0.5, 2, (N, 2)))
LABELS = jnp.asarray(RNG.integers(0, 3, N))
LOGITS, PUSH = (jnp.asarray(RNG.normal(size=(N, 3))) for _ in range(2))


def log_density(params, y):
    mean, width = params
    return -jnp.sum(((y - mean) / width) ** 2) / 2 - 0.05 * jnp.sum(y) ** 4


def energies(t):
    return Unnormalized(log_density, (MEAN + t * MOVE, WIDTH * jnp.exp(0.3 * t * TURN)))


def normals(t):
    return dist.Normal(MEAN + t * MOVE, WIDTH * jnp.exp(0.3 * t * TURN)).to_event(1)


def targets(t):
    return YS * jnp.exp(0.2 * t) + t * TURN


def by(form):
    return lambda t: kccsd(KEY, energies(t), targets(t), precondition=form).unbiased


ESTIMATES = {
    "kccsd": by(None),
    "isotropic": by("isotropic"),
    "diagonal": by("diagonal"),
    "full": by("full"),
    "kcsd": lambda t: kcsd(KEY, normals(t), targets(t), inputs=MEAN).unbiased,
    "ksd": lambda t: ksd(KEY, energies(t), targets(t)).unbiased,
    "skce": lambda t: skce(KEY, normals(t), targets(t)).unbiased,
    "ckce": lambda t: ckce(jax.nn.softmax(LOGITS + t * PUSH), LABELS).estimate,
}


TWICE = ("ksd", "full")  # second derivatives too
SLOW = ("isotropic", "diagonal", "full", "kcsd")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ESTIMATES],
)
def test_every_mode_gives_the_slope_of_what_is_returned(name):
    estimate = ESTIMATES[name]

    def slope(t):
        return jax.jvp(estimate, (t,), (jnp.ones(()),))[1]

    @jax.jit
    def everything(t):
        curvature = jax.jvp(slope, (t,), (jnp.ones(()),))[1] if name in TWICE else 0.0
        return estimate(t), slope(t), jax.grad(estimate)(t), curvature

    at, step = 0.1, 1e-5
    (_, forward, reverse, curvature), low, high = (
        everything(jnp.asarray(t)) for t in (at, at - step, at + step)
    )
    np.testing.assert_allclose(forward, (high[0] - low[0]) / (2 * step), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(reverse, forward, rtol=1e-9)
    if name in TWICE:
        wanted = (high[1] - low[1]) / (2 * step)
        np.testing.assert_allclose(curvature, wanted, rtol=1e-4, atol=1e-7)


def test_a_coordinate_without_spread_has_a_slope():
    slope = jax.grad(lambda ys: jnp.sum(Units.of(ys).scale))(YS.at[:, 1].set(2.0))
    assert np.all(np.isfinite(slope))
    assert np.all(slope[:, 1] == 0)
