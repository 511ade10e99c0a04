"""Posteriors trained by sbi, their scores and draws; each is trained once a run."""

import time
import warnings
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import sbi_methods as methods

from jaxcal import simulators
from jaxcal.sbi import score_pairs
from jaxcal.sbi.torch_posterior import log_prob_of

TASKS = {"two moons": simulators.two_moons, "SLCP": simulators.slcp}
M = 99
GRID = 64  # cells a side


@lru_cache(maxsize=1)
def prepared(name: str, sets: int, n: int, seed: int):
    """Scored pairs of ``sets`` data sets, draws of their posteriors, and the seconds of each."""
    import torch
    from sbi.inference import NLE, NPE
    from sbi.utils import BoxUniform

    task, how, budget = name.rsplit(" ", 2)
    made = TASKS[task]()
    train_key, test_key, node_key = jax.random.split(jax.random.key(seed), 3)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    low, high = (torch.as_tensor(np.array(edge)) for edge in
                 (made.prior.base_dist.low, made.prior.base_dist.high))  # fmt: skip
    prior = BoxUniform(low, high)
    simulated = made.pairs(train_key, int(budget))
    theta, x = (torch.as_tensor(np.array(part)) for part in simulated)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = (NPE if how == "NPE" else NLE)(prior=prior, show_progress_bars=False)
        trainer.append_simulations(theta, x).train(max_num_epochs=300)
        posterior = trainer.build_posterior()
    trained = time.perf_counter() - start
    pairs = made.pairs(test_key, sets * n)
    start = time.perf_counter()
    scored = score_pairs(posterior, pairs.thetas, pairs.xs, key=node_key)
    scoring = (time.perf_counter() - start) / sets
    start = time.perf_counter()
    xs = torch.as_tensor(np.array(pairs.xs))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if how == "NPE":
            sampled = posterior.sample_batched((M,), x=xs, show_progress_bars=False)
            draws = sampled.numpy().swapaxes(0, 1)  # [sets n, M, d]
        else:
            draws = from_grid(log_prob_of(posterior), low, high, xs, seed)
    drawing = (time.perf_counter() - start) / sets
    logs = log_densities(posterior, how, prior, pairs, draws)
    print(f"{name}: trained in {trained:.0f} s, drawn in {drawing * sets:.0f} s")
    return pairs, scored, draws, logs, scoring, drawing


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


def log_densities(posterior, how, prior, pairs, draws):
    """Unnormalized, of the parameters [N] and of the draws [N, M]."""
    import torch

    log_prob = log_prob_of(posterior)
    xs = torch.as_tensor(np.array(pairs.xs))
    with torch.no_grad():
        own = log_prob(torch.as_tensor(np.array(pairs.thetas)), xs).numpy()
        every = [log_prob(torch.as_tensor(np.array(draws[:, k])), xs).numpy() for k in range(M)]
    return own, np.stack(every, axis=1)


def measure_trained(name: str, method: str, key, config):
    """p-values of the data sets, and seconds a data set: scores or draws included."""
    sets = {f"{t} {h} {b}": s for t, h, b, s in config.trained}[name]
    n = config.n
    pairs, scored, draws, (own, others), scoring, drawing = prepared(name, sets, n, config.seed)
    p, spent = [], 0.0
    test = jax.jit(lambda key, thetas, scores, xs: methods.stein(method, key, thetas, scores, xs))
    for i in range(sets):
        rows = slice(i * n, (i + 1) * n)
        one_key = jax.random.fold_in(key, i)
        rng = np.random.default_rng(methods.key_seed(one_key))
        thetas, xs = np.asarray(pairs.thetas[rows]), np.asarray(pairs.xs[rows])
        start = time.perf_counter()
        if method in (*methods.OURS,):
            part = scored.scores
            scores = type(part)(part.at_targets[rows], part.at_nodes[rows], part.nodes)
            given = (one_key, scored.thetas[rows], scores, jnp.asarray(xs))
            if i == 0:  # compiled outside of the clock
                jax.block_until_ready(test(*given))
                start = time.perf_counter()
            p.append(float(test(*given)))
        elif method == "SBC chi2":
            p.append(methods.chi2(thetas, draws[rows]))
        elif method == "expected coverage":
            p.append(methods.uniform_ranks(own[rows], others[rows], rng))
        elif method == "TARP ranks":
            p.append(methods.tarp_ranks(thetas, draws[rows], rng))
        else:
            p.append(methods.of_sbi(method, methods.key_seed(one_key), thetas, xs, draws[rows]))
        spent += time.perf_counter() - start
    extra = scoring if method in methods.OURS else drawing
    return p, spent / sets + extra
