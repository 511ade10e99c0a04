"""Columns of signs that share a Hadamard matrix: the same forms as from the columns themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_quadratic import Waves, check, close, data, dense

from jaxcal.engine.quadratic import quadratic_sums
from jaxcal.engine.signs import LARGEST_GROUP, HadamardSigns, fold, hadamard


@pytest.mark.parametrize("m", [1, 2, 8])
def test_fold_adds_blocks_of_equal_distance(m):
    p, q = 3, 2
    blocks = np.random.default_rng(0).normal(size=(2, m * p, m * q))
    parts = blocks.reshape(2, m, p, m, q)
    expected = [sum(parts[:, a, :, a ^ g] for a in range(m)) for g in range(m)]
    close(fold(jnp.asarray(blocks), m), np.stack(expected, axis=1))


@pytest.mark.parametrize("m", [1, 2, 4, 32])
def test_columns_are_orthogonal_and_multiply_as_bits_add(m):
    h = np.asarray(hadamard(m, jnp.float64))
    np.testing.assert_array_equal(h @ h.T, m * np.eye(m))
    for a in range(m):
        np.testing.assert_array_equal(h[a] * h, h[a ^ np.arange(m)])


@pytest.mark.parametrize("n", [2, 12, 24, 100, 384])
def test_columns_are_signs(n, key):
    columns = np.asarray(HadamardSigns.draw(key, n, 45, jnp.float32).dense())
    assert columns.shape == (n, 45)
    assert columns.dtype == np.float32
    np.testing.assert_array_equal(columns**2, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "b", "tile"),
    [(2, 3, 512), (24, 7, 512), (65, 30, 512), (65, 30, 16), (65, 0, 16), (100, 45, 7),
     (390, 45, 512), (390, 45, 130), (390, 45, 100), (700, 45, 512)],
)  # fmt: skip
def test_forms_are_those_of_the_columns(n, b, tile, key):
    features, weights = data(n, 2)
    signs = HadamardSigns.draw(key, n, b, jnp.float64)
    sums = jax.jit(lambda f, w, s: quadratic_sums(Waves(), f, w, signs=s, squares=True, tile=tile))(
        features, weights, signs
    )
    check(sums, dense(features), jnp.concatenate([signs.dense(), weights], axis=1))
    assert signs.group == max(m for m in (1, 2, 4, 8, 16, 32) if m == 1 or n >= 12 * m)
    assert signs.group <= LARGEST_GROUP


def test_a_column_has_independent_signs(key):
    """Products of one to four signs of a column, of one group and of several, over many keys."""
    keys, n = 4000, 48

    def column(key):
        signs = HadamardSigns.draw(key, n, 8, jnp.float32)
        return signs.dense()[signs.order, 5]  # group by group

    columns = np.asarray(jax.jit(jax.vmap(column))(jax.random.split(key, keys)))
    for places in ((0,), (0, 1), (0, 4), (0, 1, 2), (0, 1, 2, 3), (3, 11, 20, 47)):
        assert abs(np.prod(columns[:, places], axis=1).mean()) < 5 / np.sqrt(keys)


@pytest.mark.parametrize("cluster", [np.arange(384) % 32, np.arange(384) // 12])
def test_repeated_observations_do_not_repeat_the_forms(cluster, key):
    """Repeats at the same place of every group would, without a random order: columns that differ
    within groups alone would have one form, and there would be 16 of them."""
    columns = np.asarray(HadamardSigns.draw(key, 384, 512, jnp.float64).dense())
    forms = np.square([columns[cluster == k].sum(0) for k in range(32)]).sum(0)
    assert len(np.unique(forms)) > 2 * 16  # whole numbers, of which every other cannot be
    assert abs(forms.mean() - 384) < 5 * np.sqrt(2 * 384 * 12 / 512)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "b"), [(5, 7), (100, 64), (411, 500)])
def test_sums_are_those_of_the_columns(n, b, key):
    signs = HadamardSigns.draw(key, n, b, float)
    values = jax.random.normal(jax.random.key(1), (n, 3))
    np.testing.assert_allclose(signs.sums(values), values.T @ signs.dense(), atol=1e-10)
