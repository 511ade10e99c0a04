"""The same calls on a CPU and on the accelerator: do their numbers agree, and what do they cost?

python experiments/benchmarks/devices.py [--quick]. Prints, for each public function, the largest
difference of a number of its result, relative to the largest entry of that number's array, and the
seconds of the first and of the second call on each device; then seconds of larger problems on the
accelerator, as shares of its own float32 product in full precision. Without an accelerator the two
columns are of one device, and the differences are 0.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import jaxcal

sys.path.insert(0, str(Path(__file__).parent))
from bench_tools import DRAWS, best, data, gaussian

Call = Callable[[], Any]


def scaled(params: Any, y: jax.Array) -> jax.Array:
    return gaussian(0 * y, (y - params[0]) / params[1])


def calls(n: int, d: int = 3) -> dict[str, Call]:
    """Public functions of log densities, distributions, draws, classes, and yes and no."""
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, n, d), np.float32)
    width = np.exp(0.4 * rng.standard_normal((n, d), np.float32))
    x, width, y = jnp.asarray(x), jnp.asarray(width), jnp.asarray(x + width * z)
    densities = jaxcal.Unnormalized(scaled, (x, width))
    normals = dist.Normal(x, width).to_event(1)
    full = dist.MultivariateNormal(x, 0.3 + 1.3 * jnp.eye(d))
    shape = (n, 40, d)
    draws = jaxcal.Draws(x[:, None] + width[:, None] * rng.standard_normal(shape, np.float32))
    p = rng.dirichlet(np.ones(5), n)
    label = jnp.asarray((p.cumsum(1) < rng.random((n, 1))).sum(1))
    p = jnp.asarray(p, jnp.float32)
    yes = jnp.asarray(rng.random(n) < np.asarray(p[:, 0]), int)
    return {
        "kccsd_test": lambda: jaxcal.kccsd_test(0, densities, y),
        "calibration_test": lambda: jaxcal.calibration_test(0, densities, y, inputs=x),
        "moment_test": lambda: jaxcal.moment_test(0, densities, y),
        "exchangeability_test": lambda: jaxcal.candidates.exchangeability_test(0, densities, y),
        "skce_test, normals": lambda: jaxcal.skce_test(0, normals, y),
        "skce_test, covariances": lambda: jaxcal.skce_test(0, full, y),
        "skce_test, draws": lambda: jaxcal.skce_test(0, draws, y),
        "skce_test, classes": lambda: jaxcal.skce_test(0, p, label),
        "ucme_test": lambda: jaxcal.ucme_test(0, normals, y),
        "ckce": lambda: jaxcal.ckce.ckce(p, label),
        "compare": lambda: jaxcal.compare(0, jnp.stack([p, p[::-1]]), label),
        "calibration_error": lambda: jaxcal.calibration_error(0, p, label),
        "distance_from_calibration": lambda: jaxcal.distance_from_calibration(0, p[:, 0], yes),
        "repair": lambda: jaxcal.repair(0, densities, y),
    }


def numbers(result: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(result)[0]
    return {
        jax.tree_util.keystr(path): np.asarray(leaf, float)
        for path, leaf in leaves
        if eqx.is_inexact_array(leaf)
    }


def difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> tuple[float, str]:
    """The largest relative difference, and where; infinite where one number alone is finite."""
    worst = (0.0, "")
    for name, left in one.items():
        right, finite = other[name], np.isfinite(left)
        if (finite != np.isfinite(right)).any():
            return np.inf, name
        size = np.abs(left[finite]).max(initial=0)
        gap = np.abs(left[finite] - right[finite]).max(initial=0)
        worst = max(worst, (gap / (size or 1), name))
    return worst


def agreement(n: int) -> None:
    devices = jax.devices("cpu")[0], jax.devices()[0]
    print(f"n = {n}: largest relative difference; first and second call, s, CPU and {devices[1]}")
    for name in calls(n):
        results, times = [], []
        for device in devices:
            with jax.default_device(device):
                call = calls(n)[name]
                for _ in range(2):
                    start = time.perf_counter()
                    results.append(jax.block_until_ready(numbers(call())))
                    times.append(time.perf_counter() - start)
        worst, where = difference(results[1], results[3])
        print(f"{name:26} {worst:8.1e} {where:34.34}" + "".join(f"{t:9.3f}" for t in times))


def speed(quick: bool) -> None:
    side = 256 if quick else 8192
    a = jax.random.normal(jax.random.key(0), (side, side), jnp.float32)
    product = {}
    for precision in ("default", "highest"):
        multiplied = jax.jit(lambda a, precision=precision: jnp.matmul(a, a, precision=precision))
        product[precision] = 2 * side**3 / best(multiplied, a)
        print(f"product in precision {precision}: {product[precision]:.3g} flop/s")
    for n in (64,) if quick else (4096, 65536):
        for tile in (512, 2048, 8192):

            def test(key: Any, x: Any, y: Any, tile: int = tile) -> Any:
                model = jaxcal.Unnormalized(gaussian, x)
                return jaxcal.kccsd_test(key, model, y, tile=tile).p_value

            seconds = best(test, jax.random.key(0), *data(n))
            share = n**2 * DRAWS / seconds / product["highest"]
            print(f"kccsd_test, n = {n}, tile = {tile}: {seconds:.3g} s, share {share:.3g}")
    for n in (64,) if quick else (10**4, 10**5, 10**6):

        def entries(key: Any, x: Any, y: Any) -> Any:
            return jaxcal.calibration_test(key, jaxcal.Unnormalized(gaussian, x), y).p_value

        print(f"calibration_test, n = {n}: {best(entries, jax.random.key(0), *data(n)):.3g} s")


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    agreement(40 if quick else 300)
    speed(quick)
