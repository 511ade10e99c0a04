import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal.fit import testing
from jaxcal.read.precisions import RANGE, precision_root


def linear(key, slopes, m=12):
    """Scores -slope z of n predictions at m points in one dimension."""
    nodes = jax.random.normal(key, (m, 1))
    return nodes, -slopes[:, None, None] * nodes[None]


def test_slopes_of_the_wrong_sign_are_replaced_and_counted(key):
    nodes, scores = linear(key, jnp.array([1.0, 2.0, 4.0, -3.0, 0.0]))
    for form in ("isotropic", "diagonal", "full"):
        root, clamped = precision_root(nodes, scores, form)
        root = root.reshape(-1)
        np.testing.assert_allclose(root, np.array([1.0, 2.0, 4.0, 2.0, 2.0]) ** -0.5, rtol=1e-6)
        assert clamped == 2


def test_extreme_slopes_are_clamped_and_counted(key):
    nodes, scores = linear(key, jnp.array([1.0, 1.0, 1.0, 1e9, 1e-9]))
    root, clamped = precision_root(nodes, scores, "diagonal")
    expected = np.array([1.0, 1.0, 1.0, RANGE, 1 / RANGE]) ** -0.5
    np.testing.assert_allclose(root[:, 0], expected, rtol=1e-6)
    assert clamped == 2


def test_full_needs_more_points_than_dimensions(key):
    nodes = jax.random.normal(key, (3, 3))
    with pytest.raises(ValueError, match="at least 4"):
        precision_root(nodes, jnp.zeros((5, 3, 3)), "full")


@pytest.mark.slow
@pytest.mark.usefixtures("programs_stay")
def test_networks_with_function_leaves_are_parameters(key):
    def energy(params, y):
        net, x = params
        return -jnp.sum((y - net(x)) ** 2) / 2

    x = jax.random.normal(key, (40, 3))
    nets = [eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, key=k) for k in jax.random.split(key)]
    ys = jax.vmap(nets[0])(x) + jax.random.normal(jax.random.key(1), (40, 2))

    def p_value(net):
        predictions = jaxcal.Unnormalized(energy, (net, x), in_axes=(None, 0))
        return jaxcal.kccsd_test(key, predictions, ys).p_value

    class Plain(eqx.Module):
        mean: jax.Array

        def scores(self, ys):
            return self.mean - ys

    plain = jaxcal.kccsd_test(key, Plain(jax.vmap(nets[0])(x)), ys)
    np.testing.assert_allclose(p_value(nets[0]), plain.p_value, atol=2 / 501)
    before = testing.unjudged.alone._cache_size()
    p_value(nets[1])
    assert testing.unjudged.alone._cache_size() == before
