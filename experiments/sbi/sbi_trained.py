"""Posteriors trained by sbi, their scores and draws; each is trained once a run."""

import time
import warnings
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np
import sbi_methods as methods
from reference.problems import two_moons
from reference.simulators import slcp

import jaxcal
from jaxcal.nulls import Wild
from jaxcal.read import Scores
from jaxcal.sbi import score_pairs
from jaxcal.sbi.pairs import ScoredPairs
from jaxcal.sbi.torch_density import density_of
from jaxcal.skce import skce_test

TASKS = {"two moons": two_moons, "SLCP": slcp}
M = 99
GRID = 64  # cells a side


class Prepared(NamedTuple):
    """Pairs of all data sets with their scores and draws, one pair more, and times a data set."""

    thetas: np.ndarray
    xs: np.ndarray
    scored: ScoredPairs
    ranks: methods.Ranks
    scoring: methods.Times
    drawing: methods.Times


@lru_cache(maxsize=1)
def prepared(name: str, sets: int, n: int, seed: int) -> Prepared:
    """``sets`` data sets of n pairs, and at the end one pair for the local test."""
    import torch
    from sbi.inference import NLE, NPE
    from sbi.utils import BoxUniform

    task, how, budget = name.rsplit(" ", 2)
    result = TASKS[task]()
    train_key, test_key, node_key = jax.random.split(jax.random.key(seed), 3)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    low, high = (torch.as_tensor(np.array(edge)) for edge in
                 (result.prior.base_dist.low, result.prior.base_dist.high))  # fmt: skip
    prior = BoxUniform(low, high)
    simulated = result.pairs(train_key, int(budget))
    theta, x = (torch.as_tensor(np.array(part)) for part in simulated)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = (NPE if how == "NPE" else NLE)(prior=prior, show_progress_bars=False)
        trainer.append_simulations(theta, x).train(max_num_epochs=300)
        posterior = trainer.build_posterior()
    trained = time.perf_counter() - start
    pairs = result.pairs(test_key, sets * n + 1)
    clock = methods.Clock()
    scored = score_pairs(node_key, posterior, pairs.thetas, pairs.xs)
    scoring = clock.read(sets)
    clock = methods.Clock()
    xs = torch.as_tensor(np.array(pairs.xs))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if how == "NPE":
            draws = inside(posterior, low, high, xs, seed)
        else:
            draws = from_grid(density_of(posterior).log_prob, low, high, xs, seed)
    drawing = clock.read(sets)
    values, others = log_densities(posterior, pairs, draws)
    print(f"{name}: trained in {trained:.0f} s, drawn in {drawing.wall * sets:.0f} s")
    thetas = np.asarray(pairs.thetas)
    ranks = methods.Ranks(thetas, draws, values, others)
    return Prepared(thetas, np.asarray(pairs.xs), scored, ranks, scoring, drawing)


def inside(posterior, low, high, xs, seed: int):
    """M draws of each x from NPE's network inside the prior's box, [n, M, 2].

    sbi's own sampler of many x goes on until the x with the most leakage has its M draws; here
    such x, with fewer than M of 4 M draws inside, go to the grid.
    """
    import torch

    network, draws = posterior.posterior_estimator, np.empty((len(xs), M, 2), np.float32)
    for start in range(0, len(xs), 1000):
        part = xs[start : start + 1000]
        drawn = network.sample((4 * M,), condition=part).transpose(0, 1)  # [k, 4 M, 2]
        good = torch.all((drawn > low) & (drawn < high), dim=-1)
        first = torch.argsort((~good).to(torch.int8), dim=1, stable=True)[:, :M]
        chosen = torch.take_along_dim(drawn, first[..., None], dim=1).numpy()
        few = np.flatnonzero(good.sum(dim=1).numpy() < M)
        if few.size:
            log_prob = density_of(posterior).log_prob
            chosen[few] = from_grid(log_prob, low, high, part[few], seed + start)
        draws[start : start + 1000] = chosen
    return draws


def from_grid(log_prob, low, high, xs, seed: int):
    """M draws of each two-dimensional posterior from the cells of a grid, [n, M, 2].

    Faster than MCMC for so many observations, and free of its errors but for the cells' size.
    """
    import torch

    side = (torch.arange(GRID) + 0.5) / GRID
    cells = torch.cartesian_prod(side, side) * (high - low) + low
    rng, draws = np.random.default_rng(seed), []
    for x in xs:
        logs = log_prob(cells, x.expand(len(cells), *x.shape)).double().numpy()
        p = np.exp(logs - logs.max())
        chosen = cells.numpy()[rng.choice(len(cells), M, p=p / p.sum())]
        draws.append(chosen + (rng.random((M, 2)) - 0.5) / GRID * (high - low).numpy())
    return np.stack(draws).astype(np.float32)


def log_densities(posterior, pairs, draws):
    """Unnormalized, of the parameters [N] and of the draws [N, M]."""
    import torch

    log_prob = density_of(posterior).log_prob
    xs = torch.as_tensor(np.array(pairs.xs))
    with torch.no_grad():
        values = log_prob(torch.as_tensor(np.array(pairs.thetas)), xs).numpy()
        every = [log_prob(torch.as_tensor(np.array(draws[:, k])), xs).numpy() for k in range(M)]
    return values, np.stack(every, axis=1)


def measure_trained(cell, key, config):
    """p-values of the data sets, and the times of one: scores or draws included."""
    name, method = cell["posterior"], cell["method"]
    sets = {f"{t} {h} {b}": s for t, h, b, s in config.trained}[name]
    n = config.n
    data = prepared(name, sets, n, config.seed)
    local = data.xs[-1], data.ranks.draws[-1]

    @jax.jit
    def by_scores(key, thetas, scores, xs):
        return methods.stein(method, key, thetas, scores, xs)

    @jax.jit
    def by_draws(key, thetas, draws):
        return skce_test(key, jaxcal.Draws(draws), thetas, null=Wild(300)).p_value

    def one(i: int) -> float:
        rows, one_key = slice(i * n, (i + 1) * n), jax.random.fold_in(key, i)
        part = methods.Ranks(*(array[rows] for array in data.ranks))
        if method == "SKCE":
            return float(by_draws(one_key, part.thetas, part.draws[:, :40]))
        if method in methods.OURS:
            every = data.scored.scores
            scores = Scores(every.at_targets[rows], every.at_nodes[rows], every.nodes)
            return float(by_scores(one_key, data.scored.thetas[rows], scores, data.xs[rows]))
        return methods.from_draws(method, methods.key_seed(one_key), data.xs[rows], part, local)

    one(0)  # compiled outside of the clock
    clock = methods.Clock()
    p = [one(i) for i in range(cell["data_sets"])]
    from_scores = method in methods.OURS and method != "SKCE"
    return p, clock.read(len(p)).plus(data.scoring if from_scores else data.drawing)
