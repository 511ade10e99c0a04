"""Level and power of `skce_test` and `ucme_test` with redrawn targets and with signs."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal import skce_test
from jaxcal.nulls import Redrawn, Wild
from jaxcal.ucme import ucme_test

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Config:
    data_sets: int = 400
    n_draws: int = 199
    families: tuple[tuple[str, int], ...] = (
        ("rare events", 50),
        ("rare events", 200),
        ("rare events", 600),
        ("3 classes", 50),
        ("3 classes", 200),
        ("20 classes", 100),
        ("normals", 16),
        ("normals", 64),
        # unseen until the others were done
        ("rare class of 4", 100),
        ("mixtures", 32),
    )
    tests: tuple[str, ...] = ("SKCE", "UCME")
    seed: int = 20261123


QUICK = Config(data_sets=4, n_draws=19, families=(("rare events", 16),), tests=("SKCE",))

Family = Callable[[jax.Array, int], tuple[Any, jax.Array, jax.Array]]


# Families: key, n -> predictions, calibrated targets, targets of a fault


def events(key: jax.Array, n: int):
    """Probabilities in (.002, .032); the fault: events are three times as frequent."""
    q_key, y_key = jax.random.split(key)
    q = jax.random.uniform(q_key, (n,), minval=0.002, maxval=0.032)
    u = jax.random.uniform(y_key, (n,))
    return q, (u < q).astype(int), (u < 3 * q).astype(int)


def classes(key: jax.Array, n: int, *, m: int, logits: float, bias: jax.Array | float = 0.0):
    """Normal logits; the fault: logits twice as large as is right."""
    x_key, y_key = jax.random.split(key)
    x = logits * jax.random.normal(x_key, (n, m)) + bias
    noise = jax.random.gumbel(y_key, (n, m))
    right, wrong = (jnp.argmax(size * x + noise, axis=1) for size in (1.0, 0.5))
    return jax.nn.softmax(x), right, wrong


def normals(key: jax.Array, n: int):
    """The fault: targets half a deviation too high."""
    x, noise = jax.random.normal(key, (2, n))
    return dist.Normal(x, 0.7), x + 0.7 * noise, x + 0.7 * (noise + 0.5)


def mixtures(key: jax.Array, n: int):
    """Two narrow modes about x; the fault: the right one three times as probable as the left."""
    keys = jax.random.split(key, 3)
    x, noise = jax.random.normal(keys[0], (n,)), 0.3 * jax.random.normal(keys[1], (n,))
    modes = jnp.stack([x - 1, x + 1], axis=1)
    weights = dist.Categorical(probs=jnp.full((n, 2), 0.5))
    predictions = dist.MixtureSameFamily(weights, dist.Normal(modes, 0.3))
    u = jax.random.uniform(keys[2], (n,))
    right, wrong = (x + jnp.where(u < share, -1, 1) + noise for share in (0.5, 0.25))
    return predictions, right, wrong


FAMILIES: dict[str, Family] = {
    "rare events": events,
    "3 classes": partial(classes, m=3, logits=1.0),
    "20 classes": partial(classes, m=20, logits=2.0),
    "normals": normals,
    "rare class of 4": partial(classes, m=4, logits=1.0, bias=jnp.array([0.0, 0.0, 0.0, -4.0])),
    "mixtures": mixtures,
}


def make(config: Config) -> runner.Study:
    """Rejections at .05 and .01 with `Redrawn` and with signs, which may have no verdict."""
    redrawn = Redrawn(config.n_draws)
    nulls = {
        "SKCE": (skce_test, (redrawn, Wild(config.n_draws))),
        "UCME": (ucme_test, (redrawn, Wild(config.n_draws))),
    }

    def measure(cell, key):
        family, n = FAMILIES[cell["family"]], cell["n"]
        test, both = nulls[cell["test"]]
        null = both[cell["null"] == "signs"]

        def one(key):
            data_key, test_key = jax.random.split(key)
            predictions, right, wrong = family(data_key, n)
            ys = wrong if cell["fault"] else right
            result = test(test_key, predictions, ys, null=null)
            rare = result.notes.get("rare-targets", jnp.zeros((), bool))
            return result.p_value, rare

        keys = jax.random.split(key, config.data_sets)
        p, rare = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
        return runner.rejections(p) | {"no_verdict": int(jnp.sum(rare))}

    cells = [
        {
            "family": family,
            "n": n,
            "test": test,
            "null": null,
            "fault": fault,
            "data_sets": config.data_sets,
        }
        for family, n in config.families
        for test in config.tests
        for null in ("redrawn", "signs")
        for fault in (0, 1)
    ]
    measured = (*runner.REJECTIONS, "no_verdict")
    return runner.Study(cells, measured, measure, config.seed, paired=("null", "fault"))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "redrawn", arguments)


if __name__ == "__main__":
    main()
