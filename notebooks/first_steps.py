# %% [markdown]
# # Is my model calibrated?
#
# A forecaster issues a whole distribution for every case, known only up to its constant. We hold
# 400 cases with the value that was then observed. Can its uncertainty be trusted, and if not,
# where is it off?

# %%
import os

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

import jaxcal
from jaxcal import plots

n = 100 if os.environ.get("JAXCAL_QUICK") else 400
keys = jax.random.split(jax.random.key(0), 4)


# %% [markdown]
# The forecast is a density with tails heavier than a Gaussian's, centred on a prediction from
# the input. The truth is noisier for large inputs, which the forecaster does not know.


# %%
def log_density(center, y):
    return -2.5 * jnp.sum(jnp.log1p((y - center) ** 2 / 4))


inputs = jax.random.uniform(keys[0], (n,), minval=-2, maxval=2)
centers = jnp.stack([jnp.sin(inputs), inputs / 2], axis=1)
spread = jnp.stack([jnp.full(n, 0.9), 0.9 + jnp.maximum(inputs, 0)], axis=1)
targets = centers + spread * jax.random.normal(keys[1], (n, 2))

forecasts = jaxcal.Unnormalized(log_density, centers)
result = jaxcal.kccsd_test(keys[2], forecasts, targets, coordinates=True)
print(result)

# %% [markdown]
# The p-value answers the first question. The table splits the estimate over the two target
# coordinates: the second is the one whose noise grows. The contributions of single observations
# show for which inputs.

# %%
figure = Figure(figsize=(9, 3.4), layout="constrained")
left, right = figure.subplots(1, 2)
plots.null_histogram(result, ax=left)
plots.contributions(result, inputs, label="input", ax=right)
figure

# %% [markdown]
# A model that knows its noise passes: here the same forecasts with targets drawn around them with
# the spread they claim (a Student-t with four degrees of freedom and scale 1).

# %%
honest = centers + jax.random.t(keys[3], 4.0, (n, 2))
print(jaxcal.kccsd_test(keys[2], forecasts, honest))
