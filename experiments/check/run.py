"""Does the verdict of `jaxcal.check` keep its level? Every kind of calibrated predictions."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import jaxcal

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
SEED = 20261123


def widths(key, n):
    """Correlated Gaussians whose means and widths depend on x: root and targets."""
    x, noise = jax.random.normal(key, (2, n, 2))
    zero = jnp.zeros(n)
    rows = [jnp.exp(x[:, 0] / 2), zero, x[:, 1] / 2, jnp.exp(-x[:, 0] / 2)]
    root = jnp.stack(rows, axis=1).reshape(n, 2, 2)
    return x, root, x + jnp.einsum("nij,nj->ni", root, noise)


def log_density(params, y):
    center, root = params
    return -jnp.sum(jnp.linalg.solve(root, y - center) ** 2) / 2


def densities(key, n):
    x, root, targets = widths(key, n)
    return jaxcal.Unnormalized(log_density, (x, root)), targets


def scores(key, n):
    x, root, targets = widths(key, n)
    nodes = jnp.asarray(np.random.default_rng(0).normal(size=(10, 2)))
    precision = jnp.linalg.inv(root @ jnp.swapaxes(root, 1, 2))
    at_nodes = jnp.einsum("nij,nmj->nmi", precision, x[:, None] - nodes[None])
    return jaxcal.Scores(
        jnp.einsum("nij,nj->ni", precision, x - targets), at_nodes, nodes.astype(x.dtype)
    ), targets


def distributions(key, n):
    x, root, targets = widths(key, n)
    return dist.MultivariateNormal(x, scale_tril=root), targets


def draws(key, n):
    data_key, draw_key = jax.random.split(key)
    x, root, targets = widths(data_key, n)
    noise = jax.random.normal(draw_key, (n, 20, 2))
    return jaxcal.Draws(x[:, None] + jnp.einsum("nij,nmj->nmi", root, noise)), targets


def classes(key, n):
    logit_key, label_key = jax.random.split(key)
    logits = 1.5 * jax.random.normal(logit_key, (n, 4))
    return jax.nn.softmax(logits), jax.random.categorical(label_key, logits)


def binary(key, n):
    p_key, label_key = jax.random.split(key)
    p = jax.random.beta(p_key, 0.7, 2.0, (n,))
    return p, jax.random.bernoulli(label_key, p).astype(int)


KINDS = {f.__name__: f for f in (densities, scores, distributions, draws, classes, binary)}


@lru_cache
def p_values(kind, n):
    """The p-values of all tests of a check, and that of its verdict, from a key."""

    def one(key):
        data_key, check_key = jax.random.split(key)
        report = jaxcal.check(check_key, *KINDS[kind](data_key, n))
        return report.p_value, report.p_values

    return runner.spread(one)


def measure(cell, key):
    kind, n, sets = cell["predictions"], cell["n"], cell["data_sets"]
    keys = jax.random.split(key, sets)
    if kind == "binary":  # its linear programs run on the host
        reports = [jaxcal.check(k, *binary(jax.random.fold_in(k, 1), n)) for k in keys]
        p = np.array([float(report.p_value) for report in reports])
        each = p[:, None]
    else:
        p, each = map(np.asarray, p_values(kind, n)(keys))
    return {
        "rejected": int(np.sum(p <= 0.05)),
        "rejected_01": int(np.sum(p <= 0.01)),
        "any_unadjusted": int(np.sum(np.any(each <= 0.05, axis=1))),
        "nan": int(np.sum(np.isnan(p))),
        "tests": each.shape[1],
    }


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    sizes: tuple[int, ...] = (100, 300)
    kinds: tuple[str, ...] = tuple(KINDS)


QUICK = Config(5, (24,), ("densities", "binary"))  # each kind is a program of many tests


def make(config):
    """Checks of every kind of predictions, all calibrated."""
    fewer = {"binary": 2 * config.data_sets // 5}  # on the host, one at a time
    cells = [
        {"predictions": kind, "n": n, "data_sets": fewer.get(kind, config.data_sets)}
        for n in config.sizes
        for kind in config.kinds
    ]
    measured = ("rejected", "rejected_01", "any_unadjusted", "nan", "tests")
    return runner.Study(cells, measured, measure, SEED)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
