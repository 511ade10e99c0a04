"""What the parts of the benchmarks share: times, rates, memory, data, and the test itself."""

import resource
import time

D, NODES, DRAWS = 5, 10, 500


def best(function, *args, repeats=3, processor=False):
    """Seconds of the fastest of a few calls, after one that compiles; of the wall clock, or of the
    processors."""
    import jax

    clock = time.process_time if processor else time.perf_counter
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(repeats):
        start = clock()
        jax.block_until_ready(function(*args))
        times.append(clock() - start)
    return min(times)


def product_rate(quick, *, processor=False):
    """Flops a second of a 4096 x 4096 x 4096 float32 matrix product, or of a small one."""
    import jax
    import jax.numpy as jnp

    side = 256 if quick else 4096
    a = jax.random.normal(jax.random.key(0), (side, side), jnp.float32)
    return 2 * side**3 / best(jax.jit(lambda a: a @ a), a, processor=processor)


def peak():
    """Largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def gaussian(mean, y):
    """The log density of a unit Gaussian, without its constant."""
    return -((y - mean) ** 2).sum() / 2


def data(n, batch=()):
    """Inputs and calibrated targets, [*batch, n, d], from NumPy: no compiled generator counts."""
    import jax.numpy as jnp
    import numpy as np

    x, noise = np.random.default_rng(1).standard_normal((2, *batch, n, D), np.float32)
    return jnp.asarray(x), jnp.asarray(x + noise)


def jaxcal_test(key, x, y):
    """The test as users call it."""
    import jaxcal

    return jaxcal.kccsd_test(key, jaxcal.Unnormalized(gaussian, x), y).p_value


def obvious_test(key, x, y):
    """The equations written down: autodiff for each pair, a dense H, a quadratic form a draw."""
    import jax
    import jax.numpy as jnp

    from jaxcal.kernels.points import gram
    from jaxcal.statistics.stein import stein

    node_key, sign_key = jax.random.split(key)
    n = y.shape[0]
    z = jax.random.normal(node_key, (NODES, D))
    score = jax.grad(gaussian, argnums=1)
    scores = jax.vmap(score)(x, y)
    at_nodes = jax.vmap(lambda m: jax.vmap(lambda node: score(m, node))(z))(x)

    def fisher(a, b):
        return jnp.mean(jnp.sum((a - b) ** 2, -1))

    def bandwidth(squared):
        distances = jnp.sqrt(squared[jnp.triu_indices(n, 1)])
        some = distances[:: max(1, distances.size // 5000)]
        return jnp.median(some)

    gfd = gram(fisher, at_nodes, at_nodes)
    sigma = jnp.maximum(bandwidth(gfd), 1e-6)
    ell = bandwidth(gram(lambda a, b: jnp.sum((a - b) ** 2), y, y))

    def target(a, b):
        return jnp.exp(-jnp.sum((a - b) ** 2) / (2 * ell**2))

    h = gram(lambda a, b: stein(target, a[0], b[0], a[1], b[1]), (y, scores), (y, scores))
    h = h * jnp.exp(-gfd / (2 * sigma**2))
    h = h - jnp.diag(jnp.diag(h))
    w = jax.random.rademacher(sign_key, (DRAWS, n), jnp.float32)
    draws = jax.vmap(lambda w: w @ h @ w)(w)
    return (1 + jnp.sum(draws >= jnp.sum(h))) / (1 + DRAWS)
