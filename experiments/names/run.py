"""Who is named where predictions are not Gaussian: one guilty coordinate, and one innocent one."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, polygamma

from jaxcal.moments.attribution import claims, faults

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
ROOT = jnp.asarray([[1.0, 0.0], [0.8, 0.6]])  # of a covariance with correlation .8
DEGREES, APART = 5.0, 1.5
FAULTS = {"none": (0.0, 1.0), "shift": (0.5, 1.0), "spread": (0.0, 1.3)}  # of coordinate 0


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    sizes: tuple[int, ...] = (200,)
    families: tuple[str, ...] = ("gaussian", "skewed", "student", "modes", "banana", "logistic")
    unseen: tuple[str, ...] = ("funnel",)  # first looked at when all was written
    seed: int = 20261123


QUICK = Config(data_sets=20, sizes=(16,), families=("skewed",), unseen=())


def noise(key: jax.Array, family: str, n: int) -> jax.Array:
    """Draws [n, 2] about a centre at 0, with standard units where `ROOT` follows."""
    key, other = jax.random.split(key)
    z = jax.random.normal(key, (n, 2))
    match family:
        case "skewed":
            g = jnp.log(jax.random.gamma(key, 2.0, (n, 2)))
            z = (g - digamma(2.0)) / jnp.sqrt(polygamma(1, 2.0))
        case "student":
            z = z * jnp.sqrt(DEGREES / jax.random.chisquare(other, DEGREES, shape=(n, 1)))
        case "modes":
            z = z + APART * jax.random.rademacher(other, (n, 1), z.dtype)
        case "logistic":
            z = jax.random.logistic(key, (n, 2))
        case "banana":
            return z.at[:, 1].set(0.8 * z[:, 1] + 0.5 * (z[:, 0] ** 2 - 1))
        case "funnel":
            return z.at[:, 1].multiply(jnp.exp(z[:, 0] / 2))
    return z @ ROOT.T


def log_density(family: str, v: jax.Array) -> jax.Array:
    """Of that noise [2], up to a constant."""
    z = jnp.linalg.inv(ROOT) @ v
    match family:
        case "skewed":
            x = digamma(2.0) + jnp.sqrt(polygamma(1, 2.0)) * z
            return jnp.sum(2 * x - jnp.exp(x))
        case "student":
            return -(DEGREES + 2) / 2 * jnp.log1p(jnp.sum(z**2) / DEGREES)
        case "modes":
            return jax.nn.logsumexp(
                jnp.stack([-jnp.sum((z - s * APART) ** 2) / 2 for s in (1, -1)])
            )
        case "logistic":
            return -jnp.sum(z + 2 * jax.nn.softplus(-z))
        case "banana":
            return -(v[0] ** 2) / 2 - ((v[1] - 0.5 * (v[0] ** 2 - 1)) / 0.8) ** 2 / 2
        case "funnel":
            return -(v[0] ** 2) / 2 - v[0] / 2 - (v[1] * jnp.exp(-v[0] / 2)) ** 2 / 2
    return -jnp.sum(z**2) / 2


def covariance(family: str) -> jax.Array:
    """Of that noise, whose mean is 0."""
    eye = jnp.eye(2)
    if family == "banana":
        return jnp.diag(jnp.asarray([1.0, 0.8**2 + 0.5]))
    if family == "funnel":
        return jnp.diag(jnp.asarray([1.0, jnp.exp(0.5)]))
    inner = {
        "student": eye * DEGREES / (DEGREES - 2),
        "modes": eye + APART**2,
        "logistic": eye * jnp.pi**2 / 3,
    }.get(family, eye)
    return ROOT @ inner @ ROOT.T


def measured(key: jax.Array, fault: jax.Array, family: str, n: int, known: str) -> Any:
    """`Faults` of one data set, whose coordinate 0 has the fault, and whether limits are given."""
    shift, spread = fault
    noise_key, center_key, width_key, node_key = jax.random.split(key, 4)
    cov = covariance(family)
    deviation = jnp.sqrt(cov[0, 0])
    centers = 2 * jax.random.normal(center_key, (n, 2))
    widths = 3 ** jax.random.uniform(width_key, (n, 1), minval=-0.5, maxval=0.5)
    relative = noise(noise_key, family, n)
    relative = relative.at[:, 0].multiply(spread).at[:, 0].add(-shift * deviation)
    ys = centers + widths * relative

    def score(y: jax.Array, center: jax.Array, width: jax.Array) -> jax.Array:
        return jax.grad(lambda y: log_density(family, (y - center) / width))(y)

    if known == "means":
        covariances = widths[:, :, None] ** 2 * cov[None]
        linear = jnp.linalg.solve(covariances, (centers - ys)[..., None])[..., 0]
        return faults(ys, linear, centers, covariances, gaussian=family == "gaussian"), True
    nodes = 3 * jax.random.normal(node_key, (10, 2))
    at_nodes = jax.vmap(lambda c, w: jax.vmap(lambda z: score(z, c, w))(nodes))(
        centers, widths[:, 0]
    )
    scores = jax.vmap(score)(ys, centers, widths[:, 0])
    told = claims(None, nodes, at_nodes, ys, scores)
    assert told is not None
    of = (told.centers, told.covariances)
    return faults(ys, told.scores, *of, exact=told.exact, gaussian=told.gaussian), told.exact


MEASURED = (
    "limits_given",
    "guilty_found",
    "wrong_sign",
    "innocent_accused",
    "guilty_covered",
    "innocent_moment_off",
    "spread_found",
    "innocent_spread_accused",
    "correlation_accused",
)


@lru_cache(maxsize=2)
def program(family: str, n: int, known: str) -> Any:
    return jax.jit(
        lambda keys, fault: jax.lax.map(
            lambda key: measured(key, fault, family, n, known), keys, batch_size=50
        ),
        compiler_options=runner.FASTER_COMPILATION,
    )


def make(config: Config) -> runner.Study:
    """Shares of data sets. A coordinate is accused where its p-value after Holm is at most .05 and
    limits are given; "innocent_moment_off": the p-value alone, which names nobody."""
    names = ("family", "known", "n", "fault")
    cells = [
        dict(zip(names, (family, known, n, fault), strict=True))
        for family in (*config.families, *config.unseen)
        for known in ("scores", "means")
        for n in config.sizes
        for fault in FAULTS
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, config.data_sets)
        fault = jnp.asarray(FAULTS[cell["fault"]])
        result, exact = program(cell["family"], cell["n"], cell["known"])(keys, fault)
        mean, spread = result.mean, result.spread
        off = mean.p_adjusted <= 0.05
        accused = off & jnp.isfinite(mean.low)
        truth = fault[0]
        return {
            "limits_given": jnp.mean(jnp.broadcast_to(exact, (config.data_sets,))),
            "guilty_found": jnp.mean(accused[:, 0]),
            "wrong_sign": jnp.mean(accused[:, 0] & (mean.estimate[:, 0] < 0)),
            "innocent_accused": jnp.mean(accused[:, 1]),
            "guilty_covered": jnp.mean((mean.low[:, 0] <= truth) & (truth <= mean.high[:, 0])),
            "innocent_moment_off": jnp.mean(off[:, 1]),
            "spread_found": jnp.mean(spread.p_adjusted[:, 0] <= 0.05),
            "innocent_spread_accused": jnp.mean(spread.p_adjusted[:, 1] <= 0.05),
            "correlation_accused": jnp.mean(result.correlation.p_adjusted[:, 0] <= 0.05),
        }

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("known",))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
