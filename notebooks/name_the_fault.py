# %% [markdown]
# # Which fault is it?
#
# A posterior can be wrong in many ways: shifted, too narrow, with a correlation left out, with
# wrong weights of its modes, with tails too light. Each common diagnostic sees some of them.
# `jaxcal.calibration_test` asks for all of them in one call, needs log densities up to their
# constants and no draw, and says what is off and where: in a table, and in pictures along an input.
#
# Here the forecast is a mixture of two correlated Gaussians about $x$, in two dimensions, and the
# targets have one fault after another. The one call gets $x$, of which forecasts are functions,
# as `inputs`. Beside it stand the same without inputs, `kccsd_test`, coverage of highest-density
# regions and simulation-based calibration (SBC). The last two get what users of unnormalized
# posteriors do not have: 99 exact draws of every prediction.

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
from jaxcal.plots.comparisons import interval

quick = bool(os.environ.get("JAXCAL_QUICK"))
n, m = (60, 19) if quick else (300, 99)  # cases, and draws of each prediction
data_sets = 4 if quick else 100
keys = jax.random.split(jax.random.key(5), data_sets)

# %% [markdown]
# ## One forecaster, eight worlds
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
# | shrinkage | their first coordinate 30 % farther out than the forecaster's centre |
# | trend | $z$ wider or narrower by $e^{.25 x_1}$ |

# %%
WORLDS = ["right", "shift", "spread", "correlation", "weights", "tails", "shrinkage", "trend"]
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
    z = jnp.where(world == 3, z, z @ ROOT.T) * jnp.exp((world == 7) * 0.25 * x[:, :1])
    x = x.at[:, 0].multiply(jnp.where(world == 6, 1.3, 1.0))
    return x + jnp.where(upper, 1, -1) * APART[None] + z + jnp.where(world == 1, 0.25, 0.0)


def p_values(key, world):
    """The result of the one call, the inputs of the forecasts, and five p-values."""
    x_key, y_key, draw_key, test_key = jax.random.split(key, 4)
    x = jax.random.normal(x_key, (n, 2))
    targets = targets_of(y_key, world, x)
    posterior = jaxcal.Unnormalized(log_density, x)
    one_call = jaxcal.calibration_test(test_key, posterior, targets, inputs=x, null=Wild(199))
    no_inputs = jaxcal.calibration_test(test_key, posterior, targets, null=Wild(199))
    stein = jaxcal.kccsd_test(test_key, posterior, targets, null=Wild(199))
    draws = jax.vmap(lambda key: targets_of(key, 0, x), out_axes=1)(jax.random.split(draw_key, m))
    regions = coverage(posterior, targets, draws)
    below = jnp.mean(draws < targets[:, None], axis=1)  # SBC: ranks of each coordinate
    gaps = jnp.sort(below, axis=0) - (jnp.arange(n)[:, None] + 0.5) / n
    sbc = 2 * 2 * jnp.exp(-2 * n * jnp.max(jnp.abs(gaps)) ** 2)  # Massart, Bonferroni
    p = [result.p_value for result in (one_call, no_inputs, stein)]
    return one_call, x, jnp.stack([*p, regions.p_uniform, jnp.minimum(sbc, 1.0)])


run = jax.jit(jax.vmap(p_values, in_axes=(0, None)))  # one program for all data sets and worlds
outcomes = [run(keys, k) for k in range(len(WORLDS))]
first = [jax.tree.map(lambda leaf: leaf[0], results) for results, _, _ in outcomes]
print(first[WORLDS.index("trend")])

# %% [markdown]
# ## What the one call says
#
# A bar is an alternative: its share of the evidence for an error, with the p-value that it has by
# itself. Black is the strongest where the test rejects. Wrong weights show as a shift, and wide
# tails as spread first. In this data set the correlation is missed.

# %%
figure, panels = plt.subplots(2, 4, figsize=(14, 5), layout="constrained", sharey=True)
for ax, world, result in zip(panels.flat, WORLDS, first, strict=True):
    plots.parts(result, ax=ax)
    ax.set_title(f"the world: {world}", loc="left")

# %% [markdown]
# ## Where it is off
#
# The table of a result has the shift and the spread of each coordinate: on the average, and what
# they grow by along the claimed centre, the claimed scale, and the inputs. Its last rows are the
# correlation and the tails, on the average alone. Errors of the last two worlds cancel over all
# cases, and show along input 0, which is $x_1$. They hardly show along the claimed centre: of two
# modes alike it is that of either, by chance.

# %%
figure, panels = plt.subplots(1, 3, figsize=(14, 3.6), layout="constrained", sharey=True)
for ax, world in zip(panels, ("spread", "shrinkage", "trend"), strict=True):
    plots.table(first[WORLDS.index(world)], ax=ax)
    ax.set_title(f"the world: {world}", loc="left")

# %% [markdown]
# ## Where along an input
#
# The table knows slopes alone. `plots.where` shows the shift or the spread in bins of any number
# that belongs to the cases, with limits that hold in all bins together: a bin whose limits leave
# out 0 is off. The fewer the bins, the narrower the limits. In the world "shrinkage" forecasts of
# coordinate 0 are too low where $x_1$ is large. In the world "trend" those of coordinate 1 are too
# wide where $x_1$ is small, and too narrow where it is large.

# %%
shown = ("shrinkage", "shift", 0), ("trend", "spread", 1)  # world, effect, coordinate
figure, panels = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
for ax, (world, effect, coordinate) in zip(panels, shown, strict=True):
    k = WORLDS.index(world)
    along = outcomes[k][1][0, :, 0]  # the first input of the first data set
    options = {"coordinate": coordinate, "effect": effect, "bins": 5, "label": "$x_1$"}
    plots.where(first[k], along, ax=ax, **options)
    ax.set_title(f"the world: {world}", loc="left", pad=22)

# %% [markdown]
# ## A corner of two inputs
#
# Over two inputs the picture is a map. In one more world the targets lie 1 higher in both
# coordinates where $x_1$ and $x_2$ are both above 0, a quarter of the cases. The table has a shift
# of both everywhere, of the second along both inputs, and the correlation that a common shift of
# some cases makes. The map shows the corner: forecasts are too low there, and right elsewhere.

# %%
x_key, y_key, test_key = jax.random.split(jax.random.key(6), 3)
x = jax.random.normal(x_key, (2 * n, 2))
corner = jnp.all(x > 0, axis=1, keepdims=True)
targets = targets_of(y_key, 0, x) + jnp.where(corner, 1.0, 0.0)
posterior = jaxcal.Unnormalized(log_density, x)
cornered = jaxcal.calibration_test(test_key, posterior, targets, inputs=x)
print(*cornered.table.sentences(), sep="\n")

figure, panels = plt.subplots(1, 2, figsize=(11, 3.9), layout="constrained")
plots.table(cornered, ax=panels[0])
plots.where(cornered, x, coordinate=1, label=("$x_1$", "$x_2$"), ax=panels[1])
plt.show()

# %% [markdown]
# ## How often each diagnostic sees it
#
# The same, over many data sets: the share in which each rejects at level .05. Coverage looks at the
# size of regions: it sees the spread, and hardly a shift or wrong weights. SBC looks at one
# coordinate at a time: it sees shifts, and weights best of all, and no correlation. KCCSD sees
# shifts, correlation and shrinkage, and no spread. The one call sees them all, without a draw from
# any prediction; without inputs it misses most of the last two.
#
# (Of right forecasts it rejects .08 here, which is what chance makes of 100 data sets now and then:
# of 800 others .06, and .05 without inputs.)

# %%
rejected = np.array([np.mean(np.asarray(p) <= 0.05, axis=0) for _, _, p in outcomes])
METHODS = ["one call", "without inputs", "KCCSD", "coverage", "SBC"]
print(f"{'':12s}", *(f"{name:>15s}" for name in METHODS))
for world, row in zip(WORLDS, rejected, strict=True):
    print(f"{world:12s}", *(f"{rate:15.2f}" for rate in row))

# %%
figure, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
places = np.arange(len(WORLDS))
for k, (name, grey) in enumerate(zip(METHODS, ["0", "0.3", "0.5", "0.7", "0.85"], strict=True)):
    ends = interval(rejected[:, k] * data_sets, data_sets, 0.95)
    ax.bar(places + (k - 2) * 0.17, rejected[:, k], 0.15, color=grey, label=name)
    ax.vlines(places + (k - 2) * 0.17, *ends, color="0.5", linewidth=1)
ax.axhline(0.05, color="0.5", linewidth=0.8, linestyle="--")
ax.set_xticks(places, WORLDS)
ax.legend(frameon=False, fontsize="small", ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
ax.set(ylabel="share of data sets rejected", ylim=(0, 1.02))
plt.show()

# %% [markdown]
# ## What to do next
#
# - `inputs=` takes any numbers that errors may vary with: what forecasts were made from, the hour.
# - Densities that end need no transform; scores are left out there.
# - The table of all cells, with those where coverage or SBC see more, is in `experiments/power`.
# - Where you can draw, look at coverage as well: it costs little beside a posterior.
