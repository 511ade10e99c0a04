# %% [markdown]
# # Which of my models should I trust?
#
# Several models predict the same targets. All are a little miscalibrated; which one least? The
# answer should not depend on which inputs happened to be drawn, and a difference should be told
# apart from chance. CKCE compares the distribution of the target given the prediction with the
# prediction itself, and `compare` gives every difference an interval and a p-value.

# %%
import os

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from matplotlib.figure import Figure

import jaxcal
from jaxcal import ckce, plots

quick = bool(os.environ.get("JAXCAL_QUICK"))
n, draws = (80, 49) if quick else (600, 499)
keys = jax.random.split(jax.random.key(0), 6)

# %% [markdown]
# ## Classifiers
#
# The truth is a distribution over four classes for every input. One model knows it; one is too
# sure, one not sure enough; one mixes in noise; and one says the same for every input, which is
# useless and yet calibrated.

# %%
truth = jax.random.dirichlet(keys[0], jnp.full(4, 0.5), (n,))
labels = jax.random.categorical(keys[1], jnp.log(truth))
models = {
    "knows": truth,
    "too sure": jax.nn.softmax(jnp.log(truth) / 0.5),
    "unsure": jax.nn.softmax(jnp.log(truth) / 2.0),
    "noisy": 0.7 * truth + 0.3 * jax.random.dirichlet(keys[2], jnp.full(4, 0.5), (n,)),
    "always the same": jnp.full((n, 4), 0.25),
}
rank = 40 if quick else 128
comparison = ckce.compare(keys[3], models, labels, measure="ckce", n_draws=draws, rank=rank)
print(comparison)

# %% [markdown]
# The models that may be the best are named, and the others are worse than some other, with 95 %
# confidence for all pairs together. A value of CKCE means little by itself; what a model says and
# what comes true does. Accuracy and proper scores stand beside it, because a forecast that is
# always the same can be calibrated.
#
# Left: CKCE without label noise, whose true value is 0 for a calibrated model. Right: every pair,
# with p-values that allow for the number of pairs.

# %%
figure = Figure(figsize=(10.5, 4), layout="constrained")
left, right = figure.subplots(1, 2)
plots.comparison(comparison, ax=left)
plots.differences(comparison, ax=right)
figure

# %% [markdown]
# Is the first one calibrated, or only the best of the lot? That is another question, with an exact
# test: labels are drawn again from the predictions.

# %%
print(ckce.ckce_test(keys[4], models["knows"], labels, n_draws=draws))

# %% [markdown]
# A constant model is calibrated too. Proper scores say what it is worth.

# %%
for name, q in models.items():
    print(
        f"{name:16s}", *(f"{k} {float(v):.3f}" for k, v in ckce.skill(q, labels)._asdict().items())
    )

# %% [markdown]
# The value depends on the ridge, and where lines cross so does the ranking. Here they cross only
# between models of which no difference was shown above. This is CKCE with its label noise, of which
# the constant model has the least, so the calibrated model that knows more lies above it at most
# ridges.

# %%
ridges = jnp.geomspace(1e-3, 1, 9)
width = float(comparison.bandwidths[0])
paths = {
    name: ckce.ckce(q, labels, ridge=ridges, bandwidth=width).estimate for name, q in models.items()
}
figure = Figure(figsize=(6.4, 4), layout="constrained")
ax = figure.subplots()
ax.axvline(float(comparison.ridge), color="0.75", linewidth=4, label="ridge used")
for (name, values), line in zip(paths.items(), ("k-", "k--", "k:", "k-.", "k.-"), strict=True):
    ax.loglog(ridges, values, line, label=name)
ax.set(xlabel="ridge (no unit)", ylabel="CKCE (squared norm)")
ax.legend()
figure

# %% [markdown]
# ## Forecasters
#
# A prediction may be any distribution, or draws from it, by the same call. Three forecasters of a
# number: right, overconfident, biased. Sizes are now shifts in standard deviations of the targets;
# the biased forecast lies 0.4 too high, which is about a third of one.

# %%
few = n // 4
inputs = jax.random.normal(keys[5], (few,))
numbers = inputs + 0.6 * jax.random.normal(keys[4], (few,))
forecasts = {
    "right": dist.Normal(inputs, 0.6),
    "overconfident": dist.Normal(inputs, 0.3),
    "biased": dist.Normal(inputs + 0.4, 0.6),
}
print(ckce.compare(keys[0], forecasts, numbers, n_draws=draws))

# %% [markdown]
# ## Posteriors known up to a constant
#
# With a log density alone there are no kernel means; the score takes their place, in units of each
# prediction's own spread, so that a sharp one weighs no more than a wide one.


# %%
def log_density(parameters, y):
    center, deviation = parameters
    return -jnp.sum((y - center) ** 2) / (2 * deviation**2)


posteriors = {
    name: jaxcal.Unnormalized(log_density, (inputs + shift, jnp.full(few, deviation)))
    for name, (shift, deviation) in {
        "right": (0.0, 0.6),
        "overconfident": (0.0, 0.3),
        "biased": (0.4, 0.6),
    }.items()
}
print(ckce.compare(keys[0], posteriors, numbers, n_draws=draws))

# %% [markdown]
# ## What to do next
#
# - Calibration is not skill: read the scores beside the ranking before you choose.
# - Where is the best one still off? `jaxcal.calibration_test` for densities,
#   `jaxcal.calibration_error` for classes.
# - Groups of cases, such as patients of two hospitals: `jaxcal.compare(.., groups=)`.
