# %% [markdown]
# # Which fault is it?
#
# A posterior can be wrong in many ways: shifted, too narrow, with a correlation left out, with
# wrong weights of its modes, with tails too light. Each common diagnostic sees some of them.
# `jaxcal.calibration_test` asks for all of them in one call, needs log densities up to their
# constants and no draw, and names the strongest fault.
#
# Here the forecast is a mixture of two correlated Gaussians about $x$, in two dimensions, and the
# targets have one fault after another. Beside the one call stand `kccsd_test`, coverage of
# highest-density regions and simulation-based calibration (SBC). The last two get what users of
# unnormalized posteriors do not have: 99 exact draws of every prediction.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxcal
from jaxcal import plots
from jaxcal.coverage import coverage
from jaxcal.nulls import Wild
from jaxcal.plots.rejections import interval

quick = bool(os.environ.get("JAXCAL_QUICK"))
n, m = (60, 19) if quick else (300, 99)  # cases, and draws of each prediction
data_sets = 4 if quick else 100
keys = jax.random.split(jax.random.key(5), data_sets)

# %% [markdown]
# ## One forecaster, six worlds
#
# With probability ½ each, $y = x \pm (3, 0) + L z$, where $L$ makes the correlation ½. That is
# what the forecaster says. The worlds differ from it:
#
# | world | the targets have |
# |---|---|
# | right | nothing wrong |
# | shift | .25 more in both coordinates |
# | spread | $z$ wider by 20 % |
# | correlation | correlation 0 |
# | weights | the upper mode with probability .35 |
# | tails | $z$ three times as wide in 8 % of the cases |

# %%
WORLDS = ["right", "shift", "spread", "correlation", "weights", "tails"]
APART = jnp.array([3.0, 0.0])
ROOT = jnp.linalg.cholesky(jnp.array([[1.0, 0.5], [0.5, 1.0]]))


def log_density(x, y):
    """Of one prediction at one target, without its constant."""
    one, other = (jnp.linalg.solve(ROOT, y - x - side * APART) for side in (1, -1))
    return jnp.logaddexp(-jnp.sum(one**2) / 2, -jnp.sum(other**2) / 2)


def targets_of(key, world, x):
    """What the world does to the same forecasts, [n, 2]."""
    side_key, z_key, tail_key = jax.random.split(key, 3)
    upper = jax.random.uniform(side_key, (len(x), 1)) < jnp.where(world == 4, 0.35, 0.5)
    z = jax.random.normal(z_key, x.shape)
    wide = (jax.random.uniform(tail_key, (len(x), 1)) < 0.08) & (world == 5)
    z = z * jnp.where(world == 2, 1.2, 1.0) * jnp.where(wide, 3.0, 1.0)
    z = jnp.where(world == 3, z, z @ ROOT.T)
    return x + jnp.where(upper, 1, -1) * APART[None] + z + jnp.where(world == 1, 0.25, 0.0)


def p_values(key, world):
    """The whole result of the one call, and the p-values of the four."""
    x_key, y_key, draw_key, test_key = jax.random.split(key, 4)
    x = jax.random.normal(x_key, (n, 2))
    targets = targets_of(y_key, world, x)
    posterior = jaxcal.Unnormalized(log_density, x)
    one_call = jaxcal.calibration_test(test_key, posterior, targets, null=Wild(199))
    stein = jaxcal.kccsd_test(test_key, posterior, targets, null=Wild(199))
    draws = jax.vmap(lambda key: targets_of(key, 0, x), out_axes=1)(jax.random.split(draw_key, m))
    regions = coverage(posterior, targets, draws)
    below = jnp.mean(draws < targets[:, None], axis=1)  # SBC: ranks of each coordinate
    gaps = jnp.sort(below, axis=0) - (jnp.arange(n)[:, None] + 0.5) / n
    sbc = 2 * 2 * jnp.exp(-2 * n * jnp.max(jnp.abs(gaps)) ** 2)  # Massart, Bonferroni
    four = [one_call.p_value, stein.p_value, regions.p_uniform, jnp.minimum(sbc, 1.0)]
    return one_call, jnp.stack(four)


run = jax.jit(jax.vmap(p_values, in_axes=(0, None)))  # one program for all data sets and worlds
outcomes = [run(keys, k) for k in range(len(WORLDS))]
first = [jax.tree.map(lambda leaf: leaf[0], results) for results, _ in outcomes]
print(first[3])

# %% [markdown]
# ## What the one call says
#
# A bar is a part of the test: how far its statistic lies from 0, in standard deviations of what
# random signs make of it. The dashed line is for their soft maximum, a little more than the longest
# bar. Black is the part that the result names.

# %%
figure, panels = plt.subplots(3, 2, figsize=(11, 8.5), layout="constrained")
for ax, world, result in zip(panels.flat, WORLDS, first, strict=True):
    plots.parts(result, ax=ax)
    ax.set_title(f"the world: {world}", loc="left", pad=24)

# %% [markdown]
# ## How often each diagnostic sees it
#
# The same, over many data sets: the share in which each rejects at level .05. Coverage looks at the
# size of regions: it sees the spread, and hardly a shift or wrong weights. SBC looks at one
# coordinate at a time: it sees shifts, and weights best of all, and no correlation. KCCSD sees
# shifts first. The one call sees all five, without a draw from any prediction.

# %%
rejected = np.array([np.mean(np.asarray(p) <= 0.05, axis=0) for _, p in outcomes])
METHODS = ["calibration_test", "kccsd_test", "coverage, exact draws", "SBC, exact draws"]
print(f"{'':12s}", *(f"{name:>22s}" for name in METHODS))
for world, row in zip(WORLDS, rejected, strict=True):
    print(f"{world:12s}", *(f"{rate:22.2f}" for rate in row))

# %%
figure, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
places = np.arange(len(WORLDS))
for k, (name, grey) in enumerate(zip(METHODS, ["0", "0.4", "0.65", "0.85"], strict=True)):
    ends = interval(rejected[:, k] * data_sets, data_sets, 0.95)
    ax.bar(places + (k - 1.5) * 0.2, rejected[:, k], 0.18, color=grey, label=name)
    ax.vlines(places + (k - 1.5) * 0.2, *ends, color="0.5", linewidth=1)
ax.axhline(0.05, color="0.5", linewidth=0.8, linestyle="--")
ax.set_xticks(places, WORLDS)
ax.legend(frameon=False, fontsize="small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
ax.set(ylabel="share of data sets rejected", ylim=(0, 1.02))

# %% [markdown]
# ## What to do next
#
# - The named part says where to look: of Gaussian predictions shift and spread by coordinate, and
#   correlation by pair, with limits, are in `kccsd_test(.., coordinates=True).coordinates`; of
#   others shifts, where their means are known, and from scores alone no coordinate is named.
# - A part that is left out is named with its reason: densities that end need no transform, but the
#   parts that need the whole space stay silent there.
# - Errors that change sign over $x$ are hard for all of these at this size; the table of all cells,
#   with the cells where coverage or SBC see more, is in `experiments/power`.
# - Where you can draw, look at coverage as well: it costs little beside a posterior.
