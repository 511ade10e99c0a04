# %% [markdown]
# # What coverage cannot see
#
# A common check of posteriors is *coverage*. For each prediction take the region of highest density
# that holds 90 % of its probability, and count how many targets lie inside. At least 90 % is
# called *conservative*, and often taken for good news.
#
# Calibrated predictions have the right coverage at every level. The converse is false. Here are
# three forecasters that are wrong with nothing, or only good, to see:
#
# 1. errors that cancel: too narrow in half of the cases, too wide in the other half;
# 2. errors on one side: regions of highest density do not ask on which side a target falls;
# 3. too wide everywhere: coverage calls that conservative.
#
# Each runs next to KCCSD, which asks for the whole of calibration. Neither needs the constants of
# the densities. Coverage also needs draws from each prediction.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import jaxcal
from jaxcal import plots
from jaxcal.coverage import coverage
from jaxcal.plots.comparisons import interval

quick = bool(os.environ.get("JAXCAL_QUICK"))
n, m = (100, 19) if quick else (400, 99)  # cases, and draws of each prediction
data_sets = 10 if quick else 200
input_key, first_key, many_key = jax.random.split(jax.random.key(11), 3)

# %% [markdown]
# ## Five worlds for one forecaster
#
# The forecaster always says $N(x, I)$ in two dimensions, with $x$ known. Its region of level $q$ is
# the disc $\lVert y - x \rVert^2 \le -2 \log(1 - q)$, so a target at distance $r$ from $x$ lies in
# all regions of level above $u = 1 - e^{-r^2/2}$. Coverage is right at every level where $u$ is
# uniform on $(0, 1)$ *over all cases together*. That leaves much freedom:
#
# | world | targets |
# |---|---|
# | calibrated | $y = x + z$ with $z \sim N(0, I)$ |
# | overconfident | $y = x + 1.2 z$: the forecaster is too narrow |
# | conservative | $y = x + 0.8 z$: the forecaster is too wide |
# | cancelling | $u$ is the larger of two uniforms where $x_1 > 0$, the smaller one elsewhere |
# | one-sided | $y = x + (\lvert z_1 \rvert, \lvert z_2 \rvert)$: always above and to the right |
#
# In the last two worlds $u$ is exactly uniform over all cases.

# %%
WORLDS = ["calibrated", "overconfident", "conservative", "cancelling", "one-sided"]


def errors(key, world, x):
    """What the targets differ from x by, [n, 2]."""
    noise_key, uniform_key = jax.random.split(key)
    z = jax.random.normal(noise_key, x.shape)
    if world == "overconfident":
        return 1.2 * z
    if world == "conservative":
        return 0.8 * z
    if world == "one-sided":
        return jnp.abs(z)
    if world == "cancelling":
        two = jax.random.uniform(uniform_key, x.shape)
        u = jnp.where(x[:, 0] > 0, jnp.max(two, axis=1), jnp.min(two, axis=1))
        radius = jnp.sqrt(-2 * jnp.log1p(-u))
        return radius[:, None] * z / jnp.linalg.norm(z, axis=1, keepdims=True)
    return z


def draw(key, world):
    """Inputs and targets of one data set."""
    x_key, error_key = jax.random.split(key)
    x = jax.random.normal(x_key, (n, 2))
    return x, x + errors(error_key, world, x)


def look(key, x, targets):
    """Coverage and KCCSD of the same forecasts."""
    draw_key, test_key = jax.random.split(key)
    forecasts = dist.Normal(x, jnp.ones_like(x)).to_event(1)
    draws = jnp.moveaxis(forecasts.sample(draw_key, (m,)), 0, 1)
    return coverage(forecasts, targets, draws), jaxcal.kccsd_test(test_key, forecasts, targets)


first = {world: draw(first_key, world) for world in WORLDS}
looks = {world: look(first_key, *first[world]) for world in WORLDS}
print(looks["cancelling"][0])
print()
print(looks["cancelling"][1])

# %%
STYLES = ["k-", "k--", "k-.", "k:", "0.45"]
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11.5, 3.9), layout="constrained")
levels = looks["calibrated"][0].levels
low, high = looks["calibrated"][0].band()
left.fill_between(levels, low, high, color="0.85", linewidth=0, label="95 % band")
for world, style in zip(WORLDS, STYLES, strict=True):
    shown = {"color": style, "linewidth": 2.2} if style == "0.45" else {}
    form = () if shown else (style,)
    left.plot(levels, looks[world][0].observed, *form, label=world, **shown)
left.set(xlabel="level of the region", ylabel="share of targets inside")
left.legend(frameon=False, fontsize="small")
x, targets = first["one-sided"]
middle.plot(*(targets - x).T, "k.", markersize=3)
middle.axhline(0, color="0.5", linewidth=0.8)
middle.axvline(0, color="0.5", linewidth=0.8)
middle.set(xlim=(-4, 4), ylim=(-4, 4), title="one-sided")
middle.set(xlabel="error in coordinate 1", ylabel="error in coordinate 2")
x, targets = first["cancelling"]
right.plot(x[:, 0], jnp.linalg.norm(targets - x, axis=1), "k.", markersize=3)
right.axhline(1.177, color="0.5", linewidth=0.8)
right.set(title="cancelling; line: radius of the 50 % region")
right.set(xlabel="input $x_1$", ylabel="distance from the center of the forecast")
for ax in (left, middle, right):
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# Left: two curves leave the band, and they are those of the forecaster that is too narrow or too
# wide. The other three stay in it or at its edge. (The curve of the calibrated world lies under the
# one-sided one: the distances are the same, only the signs of the errors differ.) Middle and right:
# what these curves do not show.
#
# For the cancelling world, printed above, coverage at all levels is within chance of its promise,
# and KCCSD rejects it.
#
# ## How often is each world found out?
#
# Over 200 data sets of 400 cases. Two questions can be put to coverage: does *every level hold its
# share*, and does every level hold *at least* its share (is the forecaster conservative)?

# %%


@jax.jit
@jax.vmap
def p_values(key, x, targets):
    covered, tested = look(key, x, targets)
    return covered.p_conservative, covered.p_uniform, tested.p_value


QUESTIONS = ["coverage: at least its share", "coverage: exactly its share", "KCCSD: calibrated"]
keys = jax.random.split(many_key, data_sets)
rejected = {}
for world in WORLDS:
    many = jax.vmap(lambda key, world=world: draw(key, world))(keys)
    p = np.asarray(p_values(keys, *many))
    rejected[world] = np.sum(p <= 0.05, axis=1)
    rates = rejected[world] / data_sets
    print(f"{world:14}", ", ".join(f"{q} {r:.2f}" for q, r in zip(QUESTIONS, rates, strict=True)))

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.axvline(0.05, color="0.35", linewidth=0.8, linestyle="--")
for k, (question, marker) in enumerate(zip(QUESTIONS, "s^o", strict=True)):
    counts = np.asarray([rejected[world][k] for world in WORLDS])
    low, high = interval(counts, data_sets, 0.95)
    rates = counts / data_sets
    ax.errorbar(
        rates,
        -np.arange(len(WORLDS)) + 0.22 * (1 - k),
        xerr=[rates - low, high - rates],
        color="black",
        fillstyle="full" if marker == "o" else "none",
        marker=marker,
        linestyle="none",
        elinewidth=0.8,
        capsize=2,
        label=question,
    )
ax.set_yticks(-np.arange(len(WORLDS)), WORLDS)
ax.set(xlabel="share of data sets rejected at the 5 % level", xlim=(-0.03, 1.03))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.45, 1.0), fontsize="small")
plt.show()

# %% [markdown]
# - **calibrated**: no question is answered wrongly more often than promised.
# - **overconfident**: all three see it. Coverage is the better detector of this one fault: 1.00
#   against 0.95, as it pools all cases and asks about nothing but the size of regions.
# - **conservative**: coverage, asked for at least its share, is content, as it should be. The
#   forecaster is still not calibrated, and the two-sided question and KCCSD say so.
# - **cancelling** and **one-sided**: coverage rejects as rarely as if all were well, and no number
#   of cases would change that. KCCSD finds the first in 80 % of data sets, the second in all.
#
# So the two complement each other. Good coverage is implied by calibration and implies little.
#
# ## Where are the errors that cancelled?
#
# KCCSD's estimate is a mean over cases, so it can be taken apart over the input.

# %%
figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
plots.contributions(
    looks["cancelling"][1],
    first["cancelling"][0][:, 0],
    bins=10,
    label="input $x_1$",
    ax=ax,
)
plt.show()

# %% [markdown]
# Three of the ten bins are clear of 0, on both sides. Near $x_1 = 0$ there is nothing to see:
# similar forecasts are pooled, and across the border errors cancel in the pool as well. With 400
# cases the picture stays coarse. The verdict is sharper than the map.
#
# ## What to do next
#
# - Ask both: `jaxcal.calibration_test` has the spread and the scores in one call, and no draws.
# - An error that changes its sign over $x$: `jaxcal.kcsd_test(.., inputs)`, given the inputs.
# - How many cases does a fault take? The notebook `power`.
