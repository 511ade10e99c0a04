"""Trained posteriors before and after a repair, beside other ways to recalibrate them."""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pit_map
from sklearn.tree import DecisionTreeRegressor

import jaxcal
from jaxcal import sbi
from jaxcal.repairing.move import energy_scores
from jaxcal.sbi.torch_density import density_of

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from boxes import SIMULATORS, Box

FOLDER = Path(__file__).parent
M = 100  # draws of each posterior for the energy score
BATCH = 25  # posteriors evaluated at once on their grids
NONE, REPAIR = "none", "repair"
CONFORMAL, LOCAL = "conformal", "local conformal"
RECALIBRATIONS = (NONE, REPAIR, "temperature", "PIT map", "more simulations", CONFORMAL, LOCAL)
MEASURED = ("log_score", "error", "gain", "gain_error", "energy_score", "covered_50", "covered_90")
MEASURED += ("size_90", "size_equal", "certified", "low", "high")


@dataclass(frozen=True)
class Config:
    simulations: int = 2000
    few: int = 300  # of a network that is trained until it overfits
    pairs: int = 500  # for the recalibration, or more simulations
    fresh: int = 2000
    cells: int = 48  # a side of the grid
    epochs: int = 300
    seeds: tuple[int, ...] = (0,)
    estimators: tuple[str, ...] = ("NPE", "NLE", "overfitted NPE")
    simulators: tuple[str, ...] = ("two moons", "epidemic", "Ricker")  # in this order
    seed: int = 20261125


QUICK = Config(
    simulations=60,
    few=40,
    pairs=60,
    fresh=30,
    cells=12,
    epochs=3,
    seeds=(0,),
    estimators=("NPE",),
    simulators=("epidemic",),
)


class Gridded(NamedTuple):
    """n posteriors in two dimensions as masses on the cells of a square grid.

    ``logs`` [n, c] log densities, normalized; ``masses`` [n, c]; ``points`` [c, 2]; ``size``, the
    area of a cell; ``at`` [n], log densities at the true parameters.
    """

    logs: np.ndarray
    masses: np.ndarray
    points: np.ndarray
    size: float
    at: np.ndarray

    @classmethod
    def of(cls, logs: np.ndarray, at: np.ndarray, points: np.ndarray, size: float) -> "Gridded":
        """Those of log densities up to a constant."""
        highest = logs.max(axis=1, keepdims=True)
        masses = np.exp(logs - highest)
        total = masses.sum(axis=1, keepdims=True)
        constant = highest + np.log(total * size)
        return cls(logs - constant, masses / total, points, size, at - constant[:, 0])

    def changed(self, logs: np.ndarray, at: np.ndarray) -> "Gridded":
        """Other densities on the same cells."""
        return Gridded.of(logs, at, self.points, self.size)

    def levels(self) -> np.ndarray:
        """The mass where the density is higher than at the true parameters, [n]."""
        return np.sum(self.masses * (self.logs > self.at[:, None]), axis=1)

    def size_of_regions(self, level: float) -> float:
        """Mean area of the regions of highest density that hold the mass ``level``."""
        masses = np.cumsum(-np.sort(-self.masses, axis=1), axis=1)
        return float(np.mean(np.sum(masses <= level, axis=1)) * self.size)

    def size_above(self, least: np.ndarray) -> float:
        """Mean area where the log density is at least ``least`` [n]."""
        return float(np.mean(np.sum(self.logs >= least[:, None], axis=1)) * self.size)

    def draws(self, rng: np.random.Generator) -> np.ndarray:
        """M draws of each, uniform within their cells, [n, M, 2]."""
        below = np.cumsum(self.masses, axis=1)
        chosen = np.stack([np.searchsorted(row, rng.random(M)) for row in below])
        centers = self.points[np.minimum(chosen, len(self.points) - 1)]
        first, last = self.points[0], self.points[-1]
        side = (last - first) / (len(self.points) ** 0.5 - 1)
        return centers + side * (rng.random(centers.shape) - 0.5)


class Prepared(NamedTuple):
    """What all recalibrations of a trained posterior start from."""

    posterior: Any
    box: Box
    held_out: tuple[np.ndarray, np.ndarray]  # pairs for the recalibration
    fresh: tuple[np.ndarray, np.ndarray]
    on_held_out: Gridded
    on_fresh: Gridded


def trained(estimator: str, box: Box, thetas: np.ndarray, xs: np.ndarray, config: Config) -> Any:
    import torch
    from sbi import inference
    from sbi.utils import BoxUniform

    prior = BoxUniform(*(torch.as_tensor(edge) for edge in (box.low, box.high)))
    stop = 20
    if estimator.startswith("overfitted"):  # pairs come again in the share that stops the training
        thetas, xs, stop = np.tile(thetas, (3, 1)), np.tile(xs, (3, 1)), config.epochs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = getattr(inference, estimator.split()[-1])(prior=prior, show_progress_bars=False)
        trainer.append_simulations(torch.as_tensor(thetas), torch.as_tensor(xs))
        trainer.train(max_num_epochs=config.epochs, stop_after_epochs=stop)
        return trainer.build_posterior()


LogDensities = Callable[[np.ndarray, slice], np.ndarray]


def original(posterior: Any, xs: np.ndarray) -> LogDensities:
    """Of parameters [k, c, 2] given the observations of a slice, [k, c]; up to a constant each."""
    import torch

    log_prob = density_of(posterior).log_prob

    def log_densities(thetas: np.ndarray, rows: slice) -> np.ndarray:
        k, c, d = thetas.shape
        with torch.no_grad():
            some = torch.as_tensor(xs[rows]).repeat_interleave(c, 0)
            flat = torch.tensor(thetas).reshape(-1, d)
            return log_prob(flat, some).reshape(k, c).numpy()

    return log_densities


def gridded(log_densities: LogDensities, box: Box, thetas: np.ndarray, cells: int) -> Gridded:
    side = (np.arange(cells, dtype=np.float32) + 0.5) / cells
    unit = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    points = box.low + (box.high - box.low) * unit
    logs, at = [], []
    for start in range(0, len(thetas), BATCH):
        rows = slice(start, min(start + BATCH, len(thetas)))
        everywhere = np.broadcast_to(points, (rows.stop - start, *points.shape))
        logs.append(log_densities(everywhere, rows))
        at.append(log_densities(thetas[rows, None], rows)[:, 0])
    values = np.concatenate(logs), np.concatenate(at)
    return Gridded.of(*values, points, box.volume / cells**2)


@lru_cache(maxsize=1)
def prepared(simulator: str, estimator: str, seed: int, config: Config) -> Prepared:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    box = SIMULATORS[simulator]
    keys = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), seed), 3)
    n = config.few if estimator.startswith("overfitted") else config.simulations
    training, held_out, fresh = (
        box.pairs(key, size)
        for key, size in zip(keys, (n, config.pairs, config.fresh), strict=True)
    )
    posterior = trained(estimator, box, *training, config)
    grids = (
        gridded(original(posterior, xs), box, thetas, config.cells)
        for thetas, xs in (held_out, fresh)
    )
    return Prepared(posterior, box, held_out, fresh, *grids)


def repaired(before: Prepared, cells: int) -> tuple[Gridded, Any]:
    """The posterior after `jaxcal.sbi.repair_posterior`, and its certificate."""
    import torch

    thetas, xs = map(torch.as_tensor, before.held_out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = sbi.repair_posterior(0, before.posterior, thetas, xs)
    new, (thetas, xs) = posterior.repaired, before.fresh
    observed = jnp.asarray(xs)
    moves = new.repair._move(new._original(observed), new.features(observed))
    old = original(before.posterior, xs)

    def log_densities(thetas: np.ndarray, rows: slice) -> np.ndarray:
        move = jax.tree.map(lambda leaf: leaf[rows], moves)
        free = new.space.free(jnp.asarray(thetas))
        back = jax.vmap(move.back, in_axes=1, out_axes=1)(free)
        slopes = new.space.log_jacobian(back) - new.space.log_jacobian(free)
        logs = old(np.asarray(new.space.bound(back)), rows)
        return logs + np.asarray(slopes - move.log_size[:, None])

    return gridded(log_densities, before.box, thetas, cells), posterior.certificate


def at_temperature(before: Prepared) -> Gridded:
    """p^b / Z(b), b of most likelihood on the pairs that are held out."""

    def warmed(grid: Gridded, b: float) -> Gridded:
        return grid.changed(b * grid.logs, b * grid.at)

    exponents = np.exp(np.linspace(np.log(0.1), np.log(5), 80))
    scores = [warmed(before.on_held_out, b).at.mean() for b in exponents]
    return warmed(before.on_fresh, float(exponents[np.argmax(scores)]))


def by_pit_map(before: Prepared, seed: int) -> Gridded:
    """After maps of probability integral transforms given x."""
    (held_out, xs), (fresh, new_xs), new = before.held_out, before.fresh, before.on_fresh
    ranks = pit_map.transforms(before.on_held_out, before.box, held_out)
    ratios = pit_map.fitted(ranks, xs, seed)
    on_cells, at = ratios(pit_map.transforms(new, before.box, fresh), new_xs)
    return new.changed(new.logs + on_cells, new.at + at)


def retrained(before: Prepared, estimator: str, seed: int, config: Config) -> Gridded:
    """The same kind of network, of the simulations and the pairs that are held out together; of two
    trainings, as some end in a poor optimum, the one that makes its pairs likelier."""
    import torch

    key = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), seed), 3)[0]
    n = config.few if estimator.startswith("overfitted") else config.simulations
    torch.manual_seed(seed + 1000)
    first = before.box.pairs(key, n)
    thetas, xs = map(np.concatenate, zip(first, before.held_out, strict=True))

    def height(posterior: Any) -> float:
        return float(original(posterior, xs)(thetas[:, None], slice(None)).mean())

    both = [trained(estimator, before.box, thetas, xs, config) for _ in range(2)]
    posterior = max(both, key=height)
    new, observed = before.fresh
    return gridded(original(posterior, observed), before.box, new, config.cells)


def thresholds(before: Prepared, local: bool) -> np.ndarray:
    """Least log densities of 90 % regions, [n], as CP4SBI has them: a quantile of the pairs
    that are held out, of all or of those in the same leaf of a regression tree in x."""
    scores, xs, new = before.on_held_out.at, before.held_out[1], before.fresh[1]
    leaves, of_new = np.zeros(len(xs), int), np.zeros(len(new), int)
    if local:
        tree = DecisionTreeRegressor(min_samples_leaf=min(100, len(xs) // 2), random_state=0)
        leaves, of_new = (tree.fit(xs, scores).apply(part) for part in (xs, new))

    def least(values: np.ndarray) -> float:
        k = int(np.floor(0.1 * (len(values) + 1)))
        return float(np.sort(values)[k - 1]) if k else -np.inf

    by_leaf = {leaf: least(scores[leaves == leaf]) for leaf in np.unique(leaves)}
    return np.asarray([by_leaf[leaf] for leaf in of_new])


def conformal(before: Prepared, local: bool) -> dict[str, float]:
    grid, least = before.on_fresh, thresholds(before, local)
    missing = np.quantile(grid.at - least, 0.1)  # with this more, .9 are covered
    return {
        "covered_90": float(np.mean(grid.at >= least)),
        "size_90": grid.size_above(least),
        "size_equal": grid.size_above(least + missing),
    }


def summary(grid: Gridded, before: Prepared, seed: int) -> dict[str, float]:
    levels, gains, n = grid.levels(), grid.at - before.on_fresh.at, len(grid.at)
    draws = jaxcal.Draws(jnp.asarray(grid.draws(np.random.default_rng(seed)), jnp.float32))
    energies = energy_scores(draws, jnp.asarray(before.fresh[0]))
    return {
        "log_score": float(np.mean(grid.at)),
        "error": float(np.std(grid.at) / n**0.5),
        "gain": float(np.mean(gains)),
        "gain_error": float(np.std(gains) / n**0.5),
        "energy_score": float(jnp.mean(energies)),
        "covered_50": float(np.mean(levels <= 0.5)),
        "covered_90": float(np.mean(levels <= 0.9)),
        "size_90": grid.size_of_regions(0.9),
        "size_equal": grid.size_of_regions(float(np.quantile(levels, 0.9))),
    }


def make(config: Config) -> runner.Study:
    """On fresh pairs: mean log score and what is gained by a recalibration, both with standard
    errors; energy score; shares of pairs in regions of highest density of 50 and 90 %, the mean
    area of those of 90 %, and of those that hold exactly 90 %; of a repair its certificate."""
    of_all = product(config.seeds, config.estimators, config.simulators)
    cells = [
        {"simulator": simulator, "estimator": estimator, "seed": seed, "recalibration": way}
        for seed, estimator, simulator in of_all
        for way in RECALIBRATIONS
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, float]:
        way, seed = cell["recalibration"], cell["seed"]
        names = cell["simulator"], cell["estimator"], seed
        before, certified = prepared(*names, config), {}
        nothing = dict.fromkeys(MEASURED, float("nan"))
        if way in (CONFORMAL, LOCAL):
            return nothing | conformal(before, way == LOCAL)
        if way == NONE:
            grid = before.on_fresh
        elif way == REPAIR:
            grid, repair = repaired(before, config.cells)
            certified = {name: float(getattr(repair, name)) for name in ("low", "high")}
            certified["certified"] = float(repair.gain)
        elif way == "temperature":
            grid = at_temperature(before)
        elif way == "PIT map":
            grid = by_pit_map(before, seed)
        else:
            grid = retrained(before, *names[1:], config)
        return nothing | summary(grid, before, seed) | certified

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "trained", arguments)


if __name__ == "__main__":
    main()
