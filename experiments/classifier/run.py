"""A classifier two-sample test from densities: weighted points in the place of draws.

One half of the pairs trains a classifier between (x, parameter) and (x, other point), the other
half is ranked by its score: the parameter among the points of its own posterior. The ranks are
uniform under the right posterior, whatever the classifier, so the p-value is exact for every n.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

sys.path.insert(0, str(Path(__file__).parents[1] / "field"))
sys.path.insert(0, str(Path(__file__).parents[1]))
import run as field
import runner

from jaxcal.entries.landed import landed
from jaxcal.read import Standardized, Units, Unnormalized

FOLDER = Path(__file__).parent
NEGATIVES = 4  # points of each pair in training, and copies of its parameter
N_NULL = 499
CHUNK = 10  # data sets of one call


@dataclass(frozen=True)
class Config:
    """``sets``: data sets of right posteriors, and of each fault."""

    n: tuple[int, ...] = (200,)
    sets: tuple[int, int] = (300, 100)
    laws: tuple[str, ...] = ("network", "two modes", "skewed", "Gaussian")
    faults: tuple[str, ...] | None = None
    points: tuple[str, ...] = ("landed", "draws")
    classifiers: tuple[str, ...] = ("quadratic", "network")
    seed: int = 20261125


QUICK = Config(n=(20,), sets=(2, 2), laws=("Gaussian",), faults=("too narrow",))


@lru_cache
def program(law: str, n: int) -> Any:
    """Parameters, inputs, weighted points and draws of data sets."""
    make = field.data_of(law, 2, n)

    def one(key: jax.Array, numbers: Any, fault: Any) -> Any:
        data_key, point_key = jax.random.split(key)
        data = make(data_key, numbers, fault)
        assert isinstance(data.predictions, Unnormalized)
        units = Units.of(data.targets)
        inside = Standardized(data.predictions, units, data.targets.shape[1:])
        near = landed(point_key, inside, units.points(data.targets), data.targets)
        points = near.points * units.scale + units.center
        return data.targets, data.inputs, points[:, 1:], near.weights, data.draws

    return jax.jit(lambda keys, *rest: jax.lax.map(lambda key: one(key, *rest), keys))


def classifier(name: str, seed: int, width: int) -> Any:
    if name == "network":
        network = MLPClassifier(
            (width, width), max_iter=100, early_stopping=True, random_state=seed
        )
        return make_pipeline(StandardScaler(), network)
    logistic = LogisticRegression(C=1.0, max_iter=200)
    return make_pipeline(StandardScaler(), PolynomialFeatures(2), StandardScaler(), logistic)


def p_value(
    name: str, seed: int, thetas: Any, xs: Any, points: np.ndarray, weights: np.ndarray
) -> float:
    """Exact p-value: which of the points of each pair is the parameter is drawn again by weight.

    ``points`` [n, m, d] and ``weights`` [n, m + 1], of the parameter first.
    """
    rng, n = np.random.default_rng(seed), len(thetas)
    weights = weights / weights.sum(axis=1, keepdims=True)
    train, test = np.arange(n // 2), np.arange(n // 2, n)
    of_others = weights[train, 1:] / weights[train, 1:].sum(axis=1, keepdims=True)
    picked = np.stack([rng.choice(points.shape[1], NEGATIVES, p=p) for p in of_others])
    negatives = np.take_along_axis(points[train], picked[:, :, None], axis=1)
    rows = np.concatenate(
        [
            np.repeat(np.concatenate([xs, thetas], axis=1)[train], NEGATIVES, axis=0),
            _with_x(xs[train], negatives),
        ]
    )
    labels = np.repeat([1, 0], len(rows) // 2)
    fitted = classifier(name, seed, 2 ** int(np.ceil(np.log2(10 * rows.shape[1]))))
    fitted.fit(rows, labels)
    members = np.concatenate([thetas[test, None], points[test]], axis=1)
    scores = fitted.predict_proba(_with_x(xs[test], members))[:, 1].reshape(len(test), -1)
    order = np.argsort(scores + 1e-12 * rng.random(scores.shape), axis=1)
    shares = np.take_along_axis(weights[test], order, axis=1)
    ranks = np.empty_like(shares)
    middle = np.cumsum(shares, axis=1) - shares / 2
    np.put_along_axis(ranks, order, middle, axis=1)
    redrawn = [
        ranks[np.arange(len(test)), _chosen(rng, weights[test])].mean() for _ in range(N_NULL)
    ]
    return (1 + np.sum(np.asarray(redrawn) >= ranks[:, 0].mean())) / (1 + N_NULL)


def _with_x(xs: np.ndarray, members: np.ndarray) -> np.ndarray:
    repeated = np.broadcast_to(xs[:, None], (*members.shape[:2], xs.shape[1]))
    return np.concatenate([repeated, members], axis=2).reshape(-1, xs.shape[1] + members.shape[2])


def _chosen(rng: np.random.Generator, weights: np.ndarray) -> np.ndarray:
    """One member of each row, by its weight."""
    below = np.cumsum(weights, axis=1)
    return np.minimum((below < rng.random((len(below), 1))).sum(axis=1), weights.shape[1] - 1)


def p_values(cell: runner.Cell, key: jax.Array) -> np.ndarray:
    law = cell["law"]
    family = field.varying.FAMILIES[field.LAWS[law][0]]
    numbers = [jnp.asarray(float(number)) for number in family[:6]]
    fault = jax.tree.map(jnp.asarray, field.varying.FAULTS[cell["fault"]])
    walk = program(field.shared(law), cell["n"])
    keys, p = jax.random.split(key, cell["data_sets"]), []
    for start in range(0, len(keys), CHUNK):
        parts = walk(keys[start : start + CHUNK], numbers, fault)
        for k, (thetas, xs, points, weights, draws) in enumerate(
            zip(*map(np.asarray, parts), strict=True)
        ):
            if cell["points"] == "draws":
                points, weights = draws, np.ones((len(draws), draws.shape[1] + 1))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of networks that stop early
                p.append(p_value(cell["classifier"], start + k, thetas, xs, points, weights))
    return np.asarray(p)


def make(config: Config) -> runner.Study:
    """Rejections at .05 and .01, on the same data sets."""
    cells = [
        {"law": law, "fault": fault, "n": n, "data_sets": sets, "classifier": by, "points": of}
        for n in config.n
        for by in config.classifiers
        for law in config.laws
        for fault in ("correct", *(config.faults or field.LAWS[law][1]))
        for sets in [config.sets[fault != "correct"]]
        for of in config.points
    ]

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, int]:
        return runner.rejections(jnp.asarray(p_values(cell, key)))

    return runner.Study(cells, runner.REJECTIONS, measure, config.seed, ("points", "classifier"))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
