"""Does a posterior's monitor keep its level while it is looked at, and how soon does it stop?"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcal
from jaxcal.entries.moments import Scaling
from jaxcal.entries.ranks import normal, seen
from jaxcal.read import Standardized, Units
from jaxcal.sbi.monitor import LEAST_PAIRS, evidence
from jaxcal.sbi.ranks import ranks_among_draws

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
SEED = 20261124
BOUND = math.log(20)
DRAWS = 19


def simulate(key, n, q):
    """theta ~ N(0, 1) and two statistics, theta + N(0, 1) each, among q inputs."""
    theta_key, x_key, rest_key = jax.random.split(key, 3)
    theta = jax.random.normal(theta_key, (n,))
    x = theta[:, None] + jax.random.normal(x_key, (n, 2))
    return theta, jnp.concatenate([x, jax.random.normal(rest_key, (n, q - 2))], axis=1)


def trained(key, steps=1500):
    """Centre and deviation by a network of 300 simulations, by default fitted until too sure."""
    theta, x = simulate(key, 300, 2)
    sizes = [(2, 32), (32, 32), (32, 2)]
    keys = jax.random.split(jax.random.fold_in(key, 1), len(sizes))
    start = [
        (jax.random.normal(k, size) / size[0] ** 0.5, jnp.zeros(size[1]))
        for k, size in zip(keys, sizes, strict=True)
    ]

    def network(layers, x):
        for w, b in layers[:-1]:
            x = jnp.tanh(x @ w + b[None])
        w, b = layers[-1]
        center, log_scale = jnp.split(x @ w + b[None], 2, axis=-1)
        return center[..., 0], jnp.exp(log_scale[..., 0])

    def loss(layers):
        center, scale = network(layers, x)
        return jnp.mean(((theta - center) / scale) ** 2 / 2 + jnp.log(scale))

    optimizer = optax.adam(1e-2)

    def step(carry, _):
        layers, state = carry
        updates, state = optimizer.update(jax.grad(loss)(layers), state)
        return (optax.apply_updates(layers, updates), state), None

    (layers, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
    return lambda x: network(layers, x[:, :2])


def ensemble(key, members=5):
    """Mean and deviation of the mixture of networks, each of simulations of its own."""
    networks = [trained(k) for k in jax.random.split(key, members)]

    def moments(x):
        centers, scales = map(jnp.stack, zip(*(each(x) for each in networks), strict=True))
        return jnp.mean(centers, axis=0), jnp.sqrt(
            jnp.var(centers, axis=0) + jnp.mean(scales**2, axis=0)
        )

    return moments


def exact(x):
    return (x[:, 0] + x[:, 1]) / 3, jnp.full(len(x), 3**-0.5)


def tilted(x, slope):
    """Deviation that changes by a factor exp(slope) for each deviation of x[0]."""
    return exact(x)[1] * jnp.exp(slope * x[:, 0] / 2**0.5)


POSTERIORS = {
    "right": exact,
    "shifted by .3": lambda x: (exact(x)[0] + 0.3 * 3**-0.5, exact(x)[1]),
    "narrow by .8": lambda x: (exact(x)[0], 0.8 * exact(x)[1]),
    "ignores x[1]": lambda x: (x[:, 0] / 2, jnp.full(len(x), 0.5**0.5)),
    "prior": lambda x: (jnp.zeros(len(x)), jnp.ones(len(x))),
    "wide by 1.25": lambda x: (exact(x)[0], 1.25 * exact(x)[1]),
    "narrow where x[0] is large": lambda x: (exact(x)[0], tilted(x, -0.3)),
    "curved": lambda x: (exact(x)[0] + 0.2 * 3**-0.5 * (x[:, 0] ** 2 / 2 - 1), exact(x)[1]),
    "wide where x[0] is large": lambda x: (exact(x)[0], tilted(x, 0.15)),
    "twice as wide, once in four": lambda x: (exact(x)[0], tilted(jnp.sign(x - 0.95), 0.35)),
}
NETWORKS = {  # trained where they are asked
    "network": trained,
    "network stopped early": partial(trained, steps=60),
    "ensemble of 5": ensemble,
}


def log_density(params, y):
    center, scale = params
    return -(((y[0] - center) / scale) ** 2) / 2


def skewed(params, y):
    """Of the logarithm of a Gamma number of shape 2, in units of the scale."""
    center, scale = params
    z = (y[0] - center) / scale
    return 2 * z - jnp.exp(z)


def one(cell, posterior, key):
    """Logarithms of the evidence after each pair, and the p-value of all pairs at once."""
    n, q, route = cell["n"], cell["inputs"], cell["ranks"]
    data_key, rank_key, test_key = jax.random.split(key, 3)
    theta, x = simulate(data_key, n, q)
    center, scale = posterior(x)
    ys, density = theta[:, None], log_density
    if route == "skewed":  # the exact posterior has this form, with the same faults
        z = jnp.log(jax.random.gamma(jax.random.fold_in(data_key, 1), 2.0, (n,)))
        right, wide = exact(x)
        ys, density = (right + wide * z)[:, None], skewed
    predictions = jaxcal.Unnormalized(density, (center, scale))
    inputs = Scaling.of(x[:LEAST_PAIRS])(x)
    if route == "exact":
        scores, widths = ((theta - center) / scale)[:, None], jnp.log(scale)[:, None]
    elif route == "draws":
        draws = center[:, None] + scale[:, None] * jax.random.normal(rank_key, (n, DRAWS + 1))
        scores = normal(ranks_among_draws(test_key, draws[:, :, None], ys))
        together = jnp.concatenate([ys, draws[:, :-1]], axis=1)
        widths = jnp.log(jnp.std(together, axis=1))[:, None] + jnp.zeros((1, 2))
    else:
        units = Units.of(jax.random.normal(jax.random.key(0), (20, 1)))
        densities = Standardized(predictions, units, (1,))
        near = seen(rank_key, densities, units.points(ys), ys)
        scores, claimed = normal(near.ranks.shown), jnp.log(near.claims[1])
        widths = jnp.concatenate([claimed, claimed], axis=1)  # of the density, of the parameter
    p = jnp.nan
    if route in ("densities", "skewed"):
        p = jaxcal.calibration_test(test_key, predictions, ys, inputs=x).p_value
    return evidence(scores, inputs, Scaling.of(widths[:LEAST_PAIRS])(widths))[0], p


def measure(cell, key):
    keys = jax.random.split(key, cell["data_sets"])
    name = cell["posterior"]
    posterior = POSTERIORS.get(name) or NETWORKS[name](jax.random.key(SEED))
    each = jax.jit(lambda keys: jax.lax.map(partial(one, cell, posterior), keys))
    logs, p = map(np.asarray, each(keys))
    reached = logs >= BOUND
    rejected = reached.any(axis=1)
    first = np.where(rejected, reached.argmax(axis=1) + 1.0, np.inf)
    return {
        "rejected": int(rejected.sum()),
        "median_pairs": float(np.median(first)),
        "at_once": int(np.sum(p <= 0.05)) if cell["ranks"] in ("densities", "skewed") else -1,
    }


@dataclass(frozen=True)
class Config:
    data_sets: int = 200
    right: int = 1000
    n: int = 200
    posteriors: tuple[str, ...] = (*POSTERIORS, *NETWORKS)
    ranks: tuple[tuple[str, tuple[int, ...]], ...] = (  # and numbers of inputs
        ("exact", (2, 20, 100)),
        ("draws", (2,)),
        ("skewed", (2,)),
        ("densities", (2, 20)),
    )


# a program for each cell, most of it the calibration test
ALL_RANKS = ("exact", (2,)), ("densities", (2,)), ("skewed", (2,)), ("draws", (2,))
QUICK = Config(3, 3, 24, ("right", "network"), ALL_RANKS)


def make(config: Config) -> runner.Study:
    """A right posterior, and faults, by three ways to ranks."""
    cells = [
        {
            "ranks": route,
            "posterior": name,
            "inputs": q,
            "n": config.n,
            "data_sets": config.right if name == "right" else config.data_sets,
        }
        for route, inputs in config.ranks
        for q in inputs
        for name in config.posteriors
        if not (route == "skewed" and name in ("ignores x[1]", "prior", *NETWORKS))
    ]
    return runner.Study(cells, ("rejected", "median_pairs", "at_once"), measure, SEED)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
