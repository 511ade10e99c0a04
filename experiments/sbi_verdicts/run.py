"""How often is `sbi.check_posterior` right: its verdict, and what it says is off."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import Unnormalized, sbi
from jaxcal.candidates import Chains
from jaxcal.models import Scores
from jaxcal.nulls import Wild
from jaxcal.sbi import ScoredPairs, Space
from jaxcal.scores import scores_at

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
NAMES = ("a", "b")
ROOT = jnp.linalg.cholesky(jnp.asarray([[1.0, 0.5], [0.5, 1.0]]))
APART = jnp.asarray([3.0, 0.0])  # half the way from one mode to the other

# what is wrong, and the sentences that are then true, as patterns
TRUE = {
    "right": (),
    "a shifted": ("a is too high",),
    "b narrow": ("b is overconfident",),
    "uncorrelated": ("the correlation of a and b",),
    "a shifted by x": ("errors change with x.0., most in a",),
    "weights": ("the mass lies elsewhere", "a is too"),
}


FAULTS = ("a shifted", "b narrow", "uncorrelated", "a shifted by x")
GROUPS = (  # family, what stands beside the densities, faults
    ("gaussian", "chains", ("right", *FAULTS)),
    ("gaussian", "draws", ("right", *FAULTS)),
    ("modes", "chains", ("right", "weights")),
)


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000  # of right posteriors
    data_sets_faulty: int = 100
    n: int = 100
    draws: int = 99
    null_draws: int = 199
    chunk: int = 100  # data sets of one call
    groups: tuple[tuple[str, str, tuple[str, ...]], ...] = GROUPS
    seed: int = 20261122


QUICK = Config(data_sets=4, data_sets_faulty=2, n=40, draws=9, null_draws=19, chunk=2,
    groups=(("gaussian", "draws", ("right", "a shifted")),))  # fmt: skip


def log_density(params: Any, theta: jax.Array) -> jax.Array:
    """Two Gaussians about ``center``, or one where they coincide."""
    center, inverse, apart, weight = params
    one, other = (inverse @ (theta - center - side * apart) for side in (1, -1))
    return jnp.logaddexp(
        jnp.log(weight) - jnp.sum(one**2) / 2, jnp.log1p(-weight) - jnp.sum(other**2) / 2
    )


def data(key: jax.Array, fault: jax.Array, *, n: int, m: int, modes: bool) -> Any:
    """Features, parameters, what the posteriors claim, and m draws of them; `fault` counts TRUE."""
    x_key, target_key, draw_key, node_key = jax.random.split(key, 4)
    xs = jax.random.normal(x_key, (n, 2))
    widths = jnp.exp(xs[:, 1] / 2)[:, None, None]
    apart = APART * modes

    def drawn(key: jax.Array, roots: jax.Array, weight: Any, k: int) -> jax.Array:
        side_key, noise_key = jax.random.split(key)
        side = jnp.where(jax.random.uniform(side_key, (n, k, 1)) < weight, 1.0, -1.0)
        noise = jax.random.normal(noise_key, (n, k, 2))
        return side * apart + jnp.einsum("nij,nkj->nki", roots, noise)

    actual = widths * ROOT
    thetas = 2 * xs + drawn(target_key, actual, 0.5, 1)[:, 0]
    narrow = jnp.diag(jnp.asarray([1.0, 0.8]))
    uncorrelated = jnp.where(fault == 3, jnp.eye(2), ROOT)
    claimed = widths * jnp.where(fault == 2, narrow @ ROOT, uncorrelated)
    shift = jnp.where(fault == 1, 0.25, 0.0) + jnp.where(fault == 4, 0.4 * jnp.sign(xs[:, 0]), 0.0)
    centers = 2 * xs + shift[:, None] * widths[:, :, 0] * jnp.asarray([1.0, 0.0])
    weight = jnp.where(fault == 5, 0.65, 0.5)
    params = (
        centers,
        jnp.linalg.inv(claimed),
        jnp.broadcast_to(apart, (n, 2)),
        weight * jnp.ones(n),
    )
    draws = centers[:, None] + drawn(draw_key, claimed, weight, m)
    nodes = 2.5 * jax.random.normal(node_key, (10, 2))
    return xs, thetas, Unnormalized(log_density, params), draws, nodes


@lru_cache(maxsize=2)
def program(config: Config, modes: bool, with_draws: bool) -> Any:
    """Reports of many data sets of one fault, by one program for all faults."""
    space = Space(jnp.full(2, -jnp.inf), jnp.full(2, jnp.inf))

    def one(key: jax.Array, fault: jax.Array) -> sbi.PosteriorReport:
        data_key, test_key = jax.random.split(key)
        xs, thetas, posterior, draws, nodes = data(
            data_key, fault, n=config.n, m=config.draws, modes=modes
        )
        scores = Scores(*scores_at(posterior, thetas, nodes), nodes)
        pairs = ScoredPairs(thetas, scores, xs, space, NAMES, (), posterior)
        return sbi.check_posterior(
            test_key,
            pairs,
            draws=draws if with_draws else None,
            chains=Chains(),
            null=Wild(config.null_draws),
            coordinates=False,
        )

    return jax.jit(lambda keys, fault: jax.lax.map(lambda key: one(key, fault), keys))


MEASURED = ("rejected", "moments", "candidates", "ranks", "given_x", "named", "falsely_accused")


def make(config: Config) -> runner.Study:
    """Of all data sets: rejected by the verdict; each p-value at most .05 by itself; what is wrong
    named; and anything said that is false."""
    cells = [
        {"family": family, "beside": beside, "fault": fault}
        for family, beside, faults in config.groups
        for fault in faults
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        right = cell["fault"] == "right"
        sets = config.data_sets if right else config.data_sets_faulty
        run = program(config, cell["family"] == "modes", cell["beside"] == "draws")
        keys = jax.random.split(key, sets).reshape(-1, config.chunk)
        fault = jnp.asarray(list(TRUE).index(cell["fault"]))
        reports = []
        for chunk in keys:
            results = jax.tree.map(np.asarray, run(chunk, fault))
            reports += [
                jax.tree.map(lambda leaf, i=i: leaf[i], results) for i in range(config.chunk)
            ]
        said = [report.findings() for report in reports]
        patterns = TRUE[cell["fault"]]

        def true(text: str) -> bool:
            return any(re.match(pattern, text) for pattern in patterns)

        p = {
            name: np.asarray([r.p_values()[name] for r in reports])
            for name in reports[0].p_values()
        }
        return {
            "rejected": np.mean([report.p_value <= 0.05 for report in reports]),
            **{name.replace(" ", "_"): np.mean(values <= 0.05) for name, values in p.items()},
            "named": np.mean([any(map(true, texts)) for texts in said]),
            "falsely_accused": np.mean([not all(map(true, texts)) for texts in said]),
        }

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
