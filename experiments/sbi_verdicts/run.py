"""How often is `sbi.check_posterior` right: its verdict, and what it says is off."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal import Unnormalized, sbi
from jaxcal.read import Scores
from jaxcal.read.scores import scores_at
from jaxcal.sbi.pairs import ScoredPairs
from jaxcal.sbi.report import PosteriorReport
from jaxcal.sbi.space import Space, over_free

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
NAMES = ("a", "b")
ROOT = jnp.linalg.cholesky(jnp.asarray([[1.0, 0.5], [0.5, 1.0]]))
APART = jnp.asarray([3.0, 0.0])  # half the way from one mode to the other
NODES, PILOTS = 10, 128  # draws of the prior: where posteriors are compared, and for jumps

# what is wrong, and the sentences that are then true, as patterns
TRUE = {
    "right": (),
    "a shifted": ("a is too high",),
    "b narrow": ("b is overconfident",),
    "uncorrelated": ("the correlation of a and b",),
    "a shifted by x": ("errors change with x.0., most in a",),
    "weights": ("the mass lies elsewhere", "a is too high"),
}
FAULTS = ("a shifted", "b narrow", "uncorrelated", "a shifted by x")
GROUPS = (  # family, what stands beside the densities, faults
    ("gaussian", "prior", ("right", *FAULTS)),
    ("gaussian", "no prior", ("right", *FAULTS)),
    ("gaussian", "draws", ("right", *FAULTS)),
    ("modes", "prior", ("right", "weights")),
    ("modes", "draws", ("right", "weights")),
    ("box", "prior", ("right", "a shifted", "b narrow")),
)
VERDICTS = {  # by how their sentences begin
    "not_calibrated": "not calibrated, so",
    "ranks_alone": "not calibrated: ",
    "given_x_alone": "calibrated as far",
    "witnesses_alone": "not right: one kind of error",
    "cannot_tell": "cannot tell",
}
SAID = {  # kinds of findings, by what is in their sentences
    "shift": "is too (high|low)",
    "spread": "confident",
    "correlation": "the correlation",
    "trend": "errors change",
    "weights": "the mass lies",
}
P_VALUES = ("moments", "candidates", "ranks", "given_x", "witnesses")
MEASURED = (
    "data_sets",
    "rejected",
    *P_VALUES,
    *VERDICTS,
    *(f"said_{kind}" for kind in SAID),
    "named",
    "falsely_accused",
)


@dataclass(frozen=True)
class Config:
    right: int = 200  # data sets of right posteriors
    faulty: int = 50
    n: int = 100
    draws: int = 99
    groups: tuple[tuple[str, str, tuple[str, ...]], ...] = GROUPS
    seed: int = 20261122


QUICK = Config(right=4, faulty=2, n=40, draws=9, groups=(("box", "prior", ("right", "a shifted")),))


class Simulated(NamedTuple):
    """n pairs, with the centre and the root of the covariance of each exact posterior."""

    xs: Float[Array, "n 2"]
    thetas: Float[Array, "n 2"]
    centers: Float[Array, "n 2"]
    roots: Float[Array, "n 2 2"]


def log_density(params: Any, theta: Array) -> Array:
    """Two Gaussians about ``center``, or one where they coincide."""
    center, inverse, apart, weight = params
    one, other = (inverse @ (theta - center - side * apart) for side in (1, -1))
    return jnp.logaddexp(
        jnp.log(weight) - jnp.sum(one**2) / 2, jnp.log1p(-weight) - jnp.sum(other**2) / 2
    )


def drawn(key: jax.Array, apart: Array, roots: Array, weight: Any, k: int) -> Array:
    """k draws about the centre of each of n posteriors without bounds, [n, k, 2]."""
    side_key, noise_key = jax.random.split(key)
    n = len(roots)
    side = jnp.where(jax.random.uniform(side_key, (n, k, 1)) < weight, 1.0, -1.0)
    noise = jax.random.normal(noise_key, (n, k, 2))
    return side * apart + jnp.einsum("nij,nkj->nki", roots, noise)


def simulated(key: jax.Array, family: str, n: int) -> Simulated:
    """Pairs of a family: x tells centre and width, or is the parameter in a box, plus noise."""
    x_key, theta_key = jax.random.split(key)
    if family == "box":
        thetas = jax.random.uniform(theta_key, (n, 2), minval=-1.0, maxval=1.0)
        xs = thetas + 0.5 * jax.random.normal(x_key, (n, 2))
        return Simulated(xs, thetas, xs, jnp.broadcast_to(0.5 * jnp.eye(2), (n, 2, 2)))
    xs = jax.random.normal(x_key, (n, 2))
    roots = jnp.exp(xs[:, 1] / 2)[:, None, None] * ROOT
    about = drawn(theta_key, APART * (family == "modes"), roots, 0.5, 1)[:, 0]
    return Simulated(xs, 2 * xs + about, 2 * xs, roots)


def pairs_of(
    key: jax.Array, fault: Array, family: str, beside: str, config: Config
) -> tuple[ScoredPairs, Array | None]:
    """Pairs, and the draws of posteriors that stand beside them; `fault` counts TRUE."""
    pair_key, prior_key, draw_key = jax.random.split(key, 3)
    xs, thetas, centers, roots = simulated(pair_key, family, config.n)
    widths = jnp.linalg.norm(roots[:, 0], axis=1)
    narrow = jnp.where(fault == 2, jnp.diag(jnp.asarray([1.0, 0.8])), jnp.eye(2))
    apart_only = jnp.sqrt(jnp.sum(roots**2, axis=2))[:, :, None] * jnp.eye(2)
    claimed = narrow @ jnp.where(fault == 3, apart_only, roots)
    shift = jnp.where(fault == 1, 0.25, 0.0) + jnp.where(fault == 4, 0.4 * jnp.sign(xs[:, 0]), 0.0)
    centers = centers + jnp.stack([shift * widths, jnp.zeros(config.n)], axis=1)
    apart, weight = APART * (family == "modes"), jnp.where(fault == 5, 0.65, 0.5)
    params = (
        centers,
        jnp.linalg.inv(claimed),
        jnp.broadcast_to(apart, (config.n, 2)),
        jnp.broadcast_to(weight, (config.n,)),
    )
    end = jnp.full(2, 1.0 if family == "box" else jnp.inf)
    space = Space(-end, end)
    posterior = over_free(Unnormalized(log_density, params), space)
    prior = space.free(simulated(prior_key, family, NODES + PILOTS).thetas)
    free, nodes = space.free(thetas), prior[:NODES]
    scores = Scores(*scores_at(posterior, free, nodes), nodes)
    jumps = prior[NODES:] if beside == "prior" else None
    pairs = ScoredPairs(free, scores, xs, space, NAMES, {}, posterior, prior_draws=jumps)
    if beside != "draws":
        return pairs, None
    return pairs, centers[:, None] + drawn(draw_key, apart, claimed, weight, config.draws)


@partial(jax.jit, static_argnames=("family", "beside", "config"))
def data(key: jax.Array, fault: Array, *, family: str, beside: str, config: Config) -> Any:
    """`pairs_of`, compiled once for all faults."""
    return pairs_of(key, fault, family, beside, config)


def make(config: Config) -> runner.Study:
    """Of all data sets: rejected by the verdict; each p-value at most .05 by itself; each verdict
    and each kind of finding; what is wrong named; and anything said that is false."""
    cells = [
        {"family": family, "beside": beside, "fault": fault}
        for family, beside, faults in config.groups
        for fault in faults
    ]
    cells.sort(key=lambda cell: cell["fault"] != "right")

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        sets = config.right if cell["fault"] == "right" else config.faulty
        chosen = {"family": cell["family"], "beside": cell["beside"], "config": config}
        fault, reports = jnp.asarray(list(TRUE).index(cell["fault"])), []
        for set_key in jax.random.split(key, sets):
            data_key, test_key = jax.random.split(set_key)
            pairs, draws = data(data_key, fault, **chosen)
            report = sbi.check_posterior(test_key, pairs, draws=draws, coordinates=False)
            reports.append(jax.tree.map(np.asarray, report))
        return counts(reports, TRUE[cell["fault"]])

    return runner.Study(cells, MEASURED, measure, config.seed)


def counts(reports: list[PosteriorReport], patterns: tuple[str, ...]) -> dict[str, int]:
    """How many of the reports say what."""

    def number(values: Any) -> int:
        return int(np.sum(list(values)))

    def true(text: str) -> bool:
        return any(re.match(pattern, text) for pattern in patterns)

    verdicts = [report.conclusion for report in reports]
    findings = [report.findings() for report in reports]
    p_values = [
        {name.replace(" ", "_"): float(p) for name, p in report.p_values().items()}
        for report in reports
    ]
    return {
        "data_sets": len(reports),
        "rejected": number(float(report.p_value) <= report.level for report in reports),
        **{name: number(p[name] <= 0.05 for p in p_values) for name in P_VALUES},
        **{
            name: number(text.startswith(start) for text in verdicts)
            for name, start in VERDICTS.items()
        },
        **{
            f"said_{kind}": number(any(re.search(word, text) for text in said) for said in findings)
            for kind, word in SAID.items()
        },
        "named": number(any(map(true, said)) for said in findings),
        "falsely_accused": number(not all(map(true, said)) for said in findings),
    }


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
