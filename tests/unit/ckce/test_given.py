"""Errors of models given their predictions and further variables."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import problems
import pytest
import scipy.stats
from test_probability import off_diagonal

from jaxcal.ckce import Equal, ckce, compare

N = 150


@partial(jax.jit, static_argnames="n")
def seen_in_part(key, n):
    """A model that knows x, one of the same accuracy that does not (both of two classes), x, y."""
    keys = jax.random.split(key, 3)
    x = jax.random.bernoulli(keys[0], 0.5, (n,)).astype(float)
    u = jax.random.uniform(keys[1], (n,))
    right = 0.15 + 0.2 * u + 0.5 * x
    blind = 0.4 + 0.2 * u  # the mean over x
    y = (jax.random.uniform(keys[2], (n,)) < right).astype(int)
    models = jnp.stack([right, blind])
    return jnp.stack([1 - models, models], axis=-1), x, y


MODELS, X, Y = seen_in_part(jax.random.key(0), N)
Z = (X - X.mean()) / X.std()


@pytest.mark.slow
def test_variables_are_columns_of_the_regression():
    result = compare(0, MODELS, Y, given=3 * X + 5, n_draws=19)
    for i, q in enumerate(np.asarray(MODELS)):
        columns = np.column_stack([q[:, 1] - q[:, 1].mean(), Z])
        w, _ = np.linalg.qr(columns)
        h = w @ w.T + 1 / N
        d = problems.one_hot(Y, 2) - q
        scale = np.sqrt(1 - np.diag(h))
        products = h / scale[:, None] / scale[None] / (2 * N) * (d @ d.T)
        value = max(products.sum() - np.trace(products), 0)
        np.testing.assert_allclose(result.corrected[i], value, rtol=1e-9)
    plain = compare(0, MODELS, Y, n_draws=19)
    value = off_diagonal(np.asarray(MODELS[1]), problems.one_hot(Y, 2) - np.asarray(MODELS[1]), 2)
    np.testing.assert_allclose(plain.corrected[1], max(value, 0), atol=1e-12)
    assert result.given == 1
    assert "given 1 further variable(s)" in str(result)
    assert "shown wrong given the variables" in str(result)


@pytest.mark.slow
def test_kernels_are_multiplied_as_in_ckce():
    options = {"given": Z, "bandwidth": 0.3, "ridge": 0.1}
    result = compare(0, MODELS, Y, measure="ckce", n_draws=19, **options)
    for value, q in zip(result.estimate, MODELS, strict=True):
        np.testing.assert_allclose(value, ckce(q, Y, **options).estimate, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["probability", "ckce", "skce"])
def test_what_depends_on_x_is_found_given_x_at_the_level(measure):
    sets = 200

    def one(key):
        key, test_key = jax.random.split(key)
        models, x, y = seen_in_part(key, N)
        return [
            compare(test_key, models, y, given=z, measure=measure, n_draws=99) for z in (x, None)
        ]

    with_variables, plain = jax.lax.map(one, jax.random.split(jax.random.key(1), sets))
    most = int(scipy.stats.binom.ppf(0.999, sets, 0.05))
    assert jnp.sum(with_variables.p_calibrated[:, 0] <= 0.05) <= most
    assert jnp.sum(~with_variables.may_be_best[:, 0]) <= most
    assert jnp.mean(with_variables.differences.p_adjusted[:, 0, 1] <= 0.05) > 0.6
    assert jnp.mean(plain.differences.p_adjusted[:, 0, 1] <= 0.05) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["probability", "ckce", "skce"])
def test_a_forecast_without_x_is_wrong_given_x(measure):
    keys = jax.random.split(jax.random.key(3))
    x = jax.random.normal(keys[0], (200,))
    y = x + 0.6 * jax.random.normal(keys[1], (200,))
    models = {"all": dist.Normal(x, 0.6), "none": dist.Normal(0 * x, np.sqrt(1.36))}
    options = {"measure": measure, "n_draws": 99}
    assert compare(0, models, y, given=x, **options).best() == ["all"]
    assert len(compare(0, models, y, **options).best()) == 2


def test_bad_variables_are_named():
    with pytest.raises(ValueError, match=f"given: wanted n={N} rows"):
        compare(0, MODELS, Y, given=X[1:])
    with pytest.raises(ValueError, match="given: column 0 holds NaN"):
        compare(0, MODELS, Y, given=X.at[3].set(jnp.nan))
    with pytest.raises(TypeError, match="given: wanted an array of numbers"):
        compare(0, MODELS, Y, given=["a"] * N)


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_group_numbers_that_float32_merges_are_refused(kind):
    groups = (2**24 + np.arange(N) % 3).astype(kind)
    q, options = MODELS[0].astype(jnp.float32), {"given_kernel": Equal(), "bandwidth": 0.3}
    with pytest.raises(ValueError, match=r"column 0 has 3 different .* float32 keeps 2 apart"):
        ckce(q, Y, given=groups, **options)
    small = ckce(q, Y, given=groups - 2**24, **options)
    exact = ckce(MODELS[0], Y, given=groups, **options)
    np.testing.assert_allclose(small.estimate, exact.estimate, rtol=1e-3)


@pytest.mark.slow
def test_a_constant_variable_and_groups():
    same = compare(0, MODELS, Y, given=jnp.ones(N), n_draws=19)
    plain = compare(0, MODELS, Y, n_draws=19)
    np.testing.assert_allclose(same.corrected, plain.corrected, rtol=1e-9)
    odd = np.arange(N) % 2 == 1
    groups = np.where(odd, "odd", "even")
    result = compare(0, MODELS[1], Y, groups=groups, given=X, n_draws=19)
    alone = compare(0, MODELS[:, odd], Y[odd], given=X[odd], n_draws=19)
    np.testing.assert_allclose(result.corrected[1], alone.corrected[1], rtol=1e-9)


@pytest.mark.parametrize(("n", "number"), [(300, 29), (60, 11)])
def test_variables_leave_room_for_the_predictions(n, number, key):
    logits = jax.random.normal(key, (2, n))
    p, z = jax.nn.sigmoid(logits), jax.random.normal(key, (n, number))
    labels = jax.random.bernoulli(key, p[0]).astype(int)
    with pytest.raises(ValueError, match=f"given: {number} columns leave no room for the"):
        compare(0, list(p), labels, given=z, n_draws=19)
    with pytest.raises(ValueError, match=f"given: {number} columns leave no room for the"):
        compare(0, [dist.Normal(p[0], 1.0)] * 2, p[1], given=z, n_draws=19)


def test_variables_that_fit_leave_the_error_of_the_predictions(key):
    """Up to the number that is refused, noise as further variables hides no error."""
    keys = jax.random.split(key, 3)
    logits = 2 * jax.random.normal(keys[0], (900,))
    labels = jax.random.bernoulli(keys[1], jax.nn.sigmoid(logits)).astype(int)
    models = [jax.nn.sigmoid(factor * logits) for factor in (1, 3)]
    noise = jax.random.normal(keys[2], (900, 28))
    alone, beside = (
        compare(0, models, labels, n_draws=99, **{} if z is None else {"given": z})
        for z in (None, noise)
    )
    assert alone.error[1] > 0.1
    assert abs(beside.error[1] - alone.error[1]) < 0.03
    assert beside.error[0] < 0.05
