"""The engine against dense sums: tiles, padding, weights, devices, memory and compilations."""

from functools import partial

import jax
import jax.numpy as jnp
import many_devices
import numpy as np
import oracles
import pytest
from jax.sharding import Mesh

from jaxcal.engine.quadratic import block_sums, quadratic_sums
from jaxcal.numerics import full_precision

close = partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-10)


class Waves:
    """Three channels that tell every pair of observations apart; counts its traces."""

    channels = 3

    def __init__(self):
        self.traces = 0

    def block(self, rows, cols):
        self.traces += 1
        (x, a), (y, b) = rows, cols
        dot = x @ y.T
        pair = a[:, None] * b[None]
        return jnp.stack([jnp.cos(dot) + pair, dot**3 - 0.4, jnp.exp(-pair)])

    def diagonal(self, features):
        x, a = features
        dot, pair = jnp.sum(x**2, -1), a**2
        return jnp.stack([jnp.cos(dot) + pair, dot**3 - 0.4, jnp.exp(-pair)])


def dense(features):
    x, a = map(np.asarray, features)
    dot, pair = x @ x.T, np.outer(a, a)
    return np.stack([np.cos(dot) + pair, dot**3 - 0.4, np.exp(-pair)])


def data(n, b=0, seed=0):
    rng = np.random.default_rng(seed + n)
    features = jnp.asarray(rng.normal(size=(n, 2))), jnp.asarray(rng.normal(size=n))
    return features, jnp.asarray(rng.normal(size=(n, b)) + 0.5)


@partial(jax.jit, static_argnames=("tile", "mesh"))
@full_precision  # as functions are that a user calls: GPUs would round
def sums(features, weights, tile, mesh=None):
    return quadratic_sums(Waves(), features, weights, squares=True, tile=tile, mesh=mesh)


def check(got, h, weights):
    off = h - np.stack([np.diag(np.diag(one)) for one in h])
    close(got.total, off.sum((1, 2)))
    close(got.diagonal, np.einsum("cii->ci", h))
    close(got.row_sums, off.sum(2))
    assert got.forms.shape == (len(h), weights.shape[1])
    close(got.forms, [oracles.quadratic_forms(one, np.asarray(weights)) for one in h])
    close(got.squares, [(off.sum(0) ** 2).sum(), *(off**2).sum((1, 2))])


CASES = [(n, tile, (n + tile) % 3 * 5 - (n + tile) % 3) for n, tile in [
    (2, 1), (2, 5), (3, 1), (3, 2), (3, 512), (7, 1), (7, 5), (7, 6), (7, 7), (64, 5), (64, 16),
    (64, 63), (64, 64), (65, 16), (65, 64), (65, 512), (130, 16), (130, 64), (130, 129), (130, 512),
]] + [(65, 16, b) for b in (0, 1, 9)] + [(65, 512, b) for b in (0, 1, 9)]  # fmt: skip


@pytest.mark.parametrize(("n", "tile", "b"), sorted(set(CASES)))
def test_sums_are_the_dense_sums(n, tile, b):
    features, weights = data(n, b)
    check(sums(features, weights, tile), dense(features), weights)


def test_squares_only_where_asked():
    features, weights = data(7)
    got = quadratic_sums(Waves(), features, weights)
    assert got.squares is None


@pytest.mark.parametrize("tile", [5, 64])
def test_one_device_mesh(tile):
    features, weights = data(23, 4)
    mesh = Mesh(np.array(jax.devices()[:1]), ("pairs",))
    check(sums(features, weights, tile, mesh), dense(features), weights)


@pytest.mark.parametrize(("n", "size"), [(2, 2), (7, 2), (7, 3), (7, 7), (65, 8), (64, 16)])
def test_block_sums_are_the_dense_block_sums(n, size):
    features, _ = data(n)
    h = dense(features)
    got = jax.jit(partial(block_sums, Waves()), static_argnums=1)(features, size)
    m = n // size
    rows = np.zeros((3, n))
    means = np.zeros((3, m))
    for c in range(3):
        for k in range(m):
            part = slice(k * size, (k + 1) * size)
            one = h[c, part, part]
            means[c, k] = oracles.u_statistic(one)
            rows[c, part] = one.sum(1) - np.diag(one)
    close(got.total / (size * (size - 1)), means)
    close(got.row_sums, rows)
    close(got.diagonal, np.einsum("cii->ci", h))


def test_block_sums_in_batches():
    # more blocks than one batch holds: 70000 pairs of size 2 against TILE^2 / 4 = 65536
    n = 140_000
    features, _ = data(n)
    got = jax.jit(partial(block_sums, Waves()), static_argnums=1)(features, 2)
    x, a = map(np.asarray, features)
    dot, pair = np.sum(x[::2] * x[1::2], -1), a[::2] * a[1::2]
    means = np.stack([np.cos(dot) + pair, dot**3 - 0.4, np.exp(-pair)])
    close(got.total / 2, means, rtol=1e-9)


class Poles:
    """h = 1 / (x y): infinite for an observation of zeros, which padding must not invent."""

    channels = 1

    def block(self, rows, cols):
        return (1 / (rows[:, None] * cols[None]))[None]

    def diagonal(self, features):
        return (1 / features**2)[None]


@pytest.mark.parametrize("tile", [5, 64])
def test_padding_brings_no_nan_of_its_own(tile):
    x = jnp.linspace(1, 2, 17)
    weights = data(17, 3)[1]
    got = jax.jit(partial(quadratic_sums, Poles(), tile=tile, squares=True))(x, weights)
    h = 1 / np.outer(x, x)
    close(got.total, [h.sum() - np.trace(h)])
    close(got.forms[0], oracles.quadratic_forms(h, np.asarray(weights)))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(got))


@pytest.mark.parametrize("where", [0, 9, 16])
@pytest.mark.parametrize("tile", [5, 64])
def test_nan_reaches_every_sum_it_belongs_to(tile, where):
    features, weights = data(17, 3)
    broken = features[0].at[where, 0].set(jnp.nan), features[1]
    got = sums(broken, weights, tile)
    for leaf in (got.total[:2], got.forms[:2], got.row_sums[:2], got.squares[:3]):
        assert np.all(np.isnan(leaf))
    assert np.all(np.isfinite(got.total[2]))  # the third channel never sees that number
    assert np.isnan(got.diagonal[0, where])
    assert np.all(np.isfinite(np.delete(got.diagonal[0], where)))


@pytest.mark.parametrize("tile", [5, 64])
def test_gradient_of_the_tiled_sum_is_that_of_the_dense_sum(tile):
    features, weights = data(17, 2)

    def tiled(features, weights):
        got = quadratic_sums(Waves(), features, weights, tile=tile)
        return jnp.sum(got.total) + jnp.sum(jnp.sin(got.forms)) + jnp.sum(got.row_sums**2)

    def whole(features, weights):
        h = Waves().block(features, features) * (1 - jnp.eye(17))[None]
        forms = jnp.einsum("ib,cij,jb->cb", weights, h, weights)
        return jnp.sum(h) + jnp.sum(jnp.sin(forms)) + jnp.sum(jnp.sum(h, 2) ** 2)

    wanted = jax.jit(jax.grad(whole, argnums=(0, 1)))(features, weights)
    got = jax.jit(jax.grad(tiled, argnums=(0, 1)))(features, weights)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-8), got, wanted)


@pytest.mark.parametrize("tile", [5, 64])
def test_vmap_over_data_sets(tile):
    features, weights = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(data(17, 3, seed) for seed in range(4))
    )
    many = jax.jit(jax.vmap(lambda f, w: quadratic_sums(Waves(), f, w, tile=tile)))
    got = many(features, weights)
    for k in range(4):
        one = jax.tree.map(lambda a, k=k: a[k], (features, weights))
        off = dense(one[0]) * (1 - np.eye(17))
        close(got.total[k], off.sum((1, 2)))
        close(got.forms[k], np.einsum("ib,cij,jb->cb", one[1], off, one[1]))


@pytest.mark.parametrize("tile", [5, 64])
def test_one_trace_a_shape(tile):
    pairwise = Waves()
    walk = jax.jit(lambda f, w: quadratic_sums(pairwise, f, w, tile=tile))
    walk(*data(17, 3))
    first = pairwise.traces
    assert 1 <= first <= 2
    for seed in range(1, 4):
        walk(*data(17, 3, seed=seed))
    assert pairwise.traces == first
    walk(*data(18, 3))
    assert pairwise.traces == 2 * first


def arrays_of(jaxpr):
    """Sizes of all arrays in a program and in the programs inside it."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            yield np.prod(variable.aval.shape, dtype=int)
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from arrays_of(inner)


@pytest.mark.parametrize("differentiate", [False, True], ids=["value", "gradient"])
def test_memory_stays_below_n_by_n(differentiate):
    tile, n = 64, 4 * 64

    def total(features, weights):
        got = quadratic_sums(Waves(), features, weights, tile=tile)
        return jnp.sum(got.total) + jnp.sum(got.forms)

    f = jax.jit(jax.grad(total) if differentiate else total)
    features, weights = data(n, 7)
    assert max(arrays_of(f.trace(features, weights).jaxpr.jaxpr)) < n * n
    compiled = f.lower(features, weights).compile().memory_analysis()
    # the same count does see the matrix where one tile holds all
    assert max(arrays_of(jax.make_jaxpr(partial(sums, tile=n))(features, weights).jaxpr)) >= n * n
    assert compiled.temp_size_in_bytes < 8 * n * n * (3 if differentiate else 1)


def test_sums_of_many_float32_tiles_keep_their_digits():
    # 80 tiles a side: compensated sums over tiles, against the same numbers in float64
    n = 640
    features, weights = data(n, 2)
    small = jax.tree.map(lambda a: a.astype(jnp.float32), features)
    exact = dense(jax.tree.map(lambda a: a.astype(jnp.float64), small))
    got = sums(small, weights.astype(jnp.float32), 8)
    assert got.total.dtype == jnp.float32
    off = exact * (1 - np.eye(n))
    close(got.total, off.sum((1, 2)), rtol=3e-6)


@pytest.mark.parametrize(
    ("n", "tile", "rows", "words"),
    [(1, 512, 1, "at least 2"), (5, 0, 5, "tile"), (5, 512, 4, "weights")],
)
def test_errors_say_what_was_wanted(n, tile, rows, words):
    with pytest.raises(ValueError, match=words):
        quadratic_sums(Waves(), data(n)[0], jnp.zeros((rows, 1)), tile=tile)


def test_features_must_agree_on_the_number_of_observations():
    with pytest.raises(ValueError, match="leading axes"):
        quadratic_sums(Waves(), (jnp.zeros((5, 2)), jnp.zeros(4)), jnp.zeros((5, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("size", [-1, 0, 1, 6])
def test_block_size_is_checked(size):
    with pytest.raises(ValueError, match="block size"):
        block_sums(Waves(), data(5)[0], size)


ON_DEVICES = """
    import json, sys
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh
    import jaxcal
    from jaxcal.divergences import Vectors
    from jaxcal.kernels import Gaussian
    from jaxcal.statistics.stein import Stein, SteinFeatures
    from jaxcal.statistics.weighted import Weighted, WeightedFeatures
    from jaxcal.engine.quadratic import quadratic_sums

    rng = np.random.default_rng(0)
    n = 101
    ys, scores, phi, w = (jnp.asarray(rng.normal(size=(n, k))) for k in (2, 2, 3, 9))
    features = WeightedFeatures(phi, SteinFeatures(ys, scores))
    stein = Stein(Gaussian(1.0), dimension=2, components=True)
    pairwise = Weighted(Gaussian(1.5), Vectors(phi[:0]), stein)

    def of(mesh, tile):
        walk = jax.jit(lambda f, w: quadratic_sums(
            pairwise, f, w, squares=True, tile=tile, mesh=mesh))
        got = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(walk(features, w))]
        if mesh is not None and mesh.size != 8:
            return np.concatenate(got).tolist()
        test = jaxcal.kccsd_test(
            jax.random.key(0), jaxcal.Scores(scores), ys, divergence=Vectors(phi), mesh=mesh,
            tile=tile, null=jaxcal.nulls.Wild(19))
        got += [np.asarray(a).ravel() for a in (test.estimate, test.null_samples, test.p_value)]
        return np.concatenate(got).tolist()

    devices = np.array(jax.devices())
    meshes = [Mesh(devices[:k], ("pairs",)) for k in (1, 2, 8)]
    meshes.append(Mesh(devices.reshape(2, 4), ("hosts", "devices")))
    json.dump([of(mesh, 16) for mesh in [None, *meshes]], sys.stdout)
"""


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_devices():
    alone, *shared = many_devices.run_on(8, ON_DEVICES)
    for other in shared:
        np.testing.assert_allclose(other, alone[: len(other)], rtol=1e-11, atol=1e-10)
