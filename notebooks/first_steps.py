# %% [markdown]
# # Is my model calibrated?
#
# A forecaster issues a whole distribution for every case, not one number. We hold 400 cases, each
# with the value that was then observed. Three questions:
#
# 1. Can the forecaster's uncertainty be trusted?
# 2. If not, where is it off?
# 3. Would this test have passed an honest forecaster?
#
# **Calibrated** means: among all cases with the same forecast $p$, the observed values are spread
# as $p$ says, $\;P(Y \in \cdot \mid \text{forecast} = p) = p$. All that is asked of a forecast is
# its *score* $\nabla_y \log p(y)$, so its density may be known up to a constant only.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxcal
from jaxcal import plots

n = 100 if os.environ.get("JAXCAL_QUICK") else 400  # cases; the smaller number is a smoke test
input_key, noise_key, test_key, honest_key = jax.random.split(jax.random.key(0), 4)


# %% [markdown]
# ## What to bring
#
# Two things: the forecasts and the targets.
#
# The forecasts are given by a function `log_density(params, y)` of **one** forecast at **one**
# target, and by the parameters of all forecasts, stacked along a first axis. Here a target is a
# pair of numbers, and a forecast is centred on a guess made from the input, with tails heavier than
# a Gaussian's. The density is left without its constant.


# %%
def log_density(center, y):
    return -2.5 * jnp.sum(jnp.log1p((y - center) ** 2 / 4))


inputs = jax.random.uniform(input_key, (n,), minval=-2, maxval=2)
centers = jnp.stack([jnp.sin(inputs), inputs / 2], axis=1)
forecasts = jaxcal.Unnormalized(log_density, centers)
print("parameters of the forecasts:", centers.shape)

# %% [markdown]
# The targets are made up here; you have your own. The truth is noisier for large inputs in the
# second coordinate. The forecaster does not know that.

# %%
spread = jnp.stack([jnp.full(n, 0.9), 0.9 + jnp.maximum(inputs, 0)], axis=1)
targets = centers + spread * jax.random.normal(noise_key, (n, 2))
print("targets:", targets.shape)

# %% [markdown]
# ## Can the uncertainty be trusted?
#
# `coordinates=True` also asks about each coordinate of the target.

# %%
result = jaxcal.kccsd_test(test_key, forecasts, targets, coordinates=True)
print(result)

# %% [markdown]
# How to read it:
#
# - **estimate**: how far from calibrated, as a squared discrepancy. 0 is calibrated. It is
#   unbiased, so it may come out negative for a good model.
# - **p-value**: how often a calibrated forecaster would look at least this bad. It is small.
# - **verdict**: is the p-value at most the level, `level=0.05` unless you say otherwise? The test
#   rejects: the forecaster is not calibrated. A third outcome is "cannot tell", with a reason.
# - **given the others**: the parts that the coordinates have in the estimate, with p-values
#   corrected (Holm) for looking at two coordinates, which are counted from 0. Coordinate 1, the
#   second, carries five times as much. Coordinate 0 is off too, though its noise is the same for
#   all inputs: the forecast has the tails of a Student-t distribution, the truth those of a
#   Gaussian. Coordinates of these forecasts are independent; were they correlated, a fault of one
#   would show in the part of the other.
# - **warning**: what limits the result. How far each coordinate is off by itself is exact for
#   Gaussian forecasts, and printed of these. These have heavier tails, so it is not.
#
# ## Where is it off?
#
# Every observation has its part in the estimate. Over the input, the parts show where the
# forecaster goes wrong.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
plots.null_histogram(result, ax=left)
plots.contributions(result, inputs, label="input (no unit)", ax=right)
plt.show()

# %% [markdown]
# Left: the statistic lies far beyond what a calibrated forecaster would give. Right: the running
# mean leaves 0 on the right side, for large inputs, which is where the noise was made to grow.
#
# ## Would an honest forecaster pass?
#
# The same forecasts, with targets that are spread around them as they claim. (The density above is
# that of a Student-t distribution with four degrees of freedom and scale 1.)

# %%
honest = centers + jax.random.t(honest_key, 4.0, (n, 2))
print(jaxcal.kccsd_test(test_key, forecasts, honest))

# %% [markdown]
# Not rejected. This is not a proof: a test can only see what its kernels compare, and 400 cases are
# not many. The line below the verdict says what they are good for: a shift of the targets, along a
# coordinate and in their standard deviations, that would have been found in 80 % of such data sets.
#
# ## Where to go from here
#
# - A network that all forecasts share: `Unnormalized(energy, (net, xs), in_axes=(None, 0))`.
# - Ready-made distributions: pass a `numpyro.distributions` object with one entry a forecast.
# - Scores from PyTorch or R: `jaxcal.Scores(at_targets, at_nodes, nodes)`.
# - Days in a row depend on each other: `null=jaxcal.nulls.DependentWild()`.
# - Use cases that the model was not fitted to.
