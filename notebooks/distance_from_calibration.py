# %% [markdown]
# # ECE said 0.03. How far from calibrated am I?
#
# A classifier's probabilities gave an expected calibration error of 0.03 with 15 bins. Is that
# small? Would 20 bins say the same? And is a calibrated model 0.03 away, or 0.3?

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from jaxcal import dce
from jaxcal.plots.reliability import bracket, with_witness

quick = bool(os.environ.get("JAXCAL_QUICK"))
n = 200 if quick else 2000
options = {"n_draws": 99} if quick else {}
data_key, key = jax.random.split(jax.random.key(4))

# %% [markdown]
# The number depends on the bins. Take two kinds of cases, one predicted at just below 1/2 that
# never comes true, one at just above that always does: an odd number of bins sees nothing, an even
# number sees half.

# %%
v, y, w = np.array([0.49, 0.51]), np.array([0.0, 1.0]), np.array([0.5, 0.5])
for bins in (14, 15, 20, 21):
    print(f"{bins} bins: ECE {float(dce.binned_ece(v, y, weights=w, edges=bins).value):.3f}")

# %% [markdown]
# What is wanted is the distance to the nearest calibrated predictor: how much the probabilities
# have to move on average. Predictions and labels alone cannot give that number, but they pin it
# between two ends, and each end has a proof: a weight function that sees the error, or bins that
# repair it.

# %%
print(dce.distance_from_calibration(key, v, y, weights=w, **options).bracket.sources)
print("smooth calibration error:", dce.smooth_ce(v, y, weights=w))
print("best bins:              ", dce.interval_ce(v, y, weights=w))

# %% [markdown]
# Now a model. It is somewhat overconfident: the truth's log odds are multiplied by 1.3.


# %%
def forecasts(key, factor):
    """Probabilities whose log odds are the truth's times ``factor``, and labels from the truth."""
    truth_key, label_key = jax.random.split(key)
    truth = jax.random.uniform(truth_key, (n,))
    p = jax.nn.sigmoid(factor * jax.scipy.special.logit(truth))
    return p, jax.random.bernoulli(label_key, truth).astype(p.dtype)


p, labels = forecasts(data_key, 1.3)
ece = dce.binned_ece(p, labels, edges=15)
print(f"15 bins: ECE {float(ece.value):.3f}; with the bins' width, {float(ece.bound):.3f}")
result = dce.distance_from_calibration(key, p, labels, **options)
print(result)

# %% [markdown]
# These lines answer the question. *These data*: any calibrated predictor is at least so far, and
# one exists at most so far. *Population*: the same with the noise of a sample. *p-value* and
# *verdict*: could a calibrated model have produced this? *ECE* is that of 15 bins: the unbinned one
# of distinct predictions is the mean of |y - p|, and worthless.

# %%
figure = Figure(figsize=(12, 5), layout="constrained")
left, right = figure.subplots(1, 2)
with_witness(result, ax=left)
bracket(result, ax=right)
figure

# %% [markdown]
# On the left the grey witness is where the smooth calibration error comes from: the weight whose
# mean product with label less prediction is that error. It falls from left to right, from
# predictions that are rather too low to those that are too high, which is overconfidence; where all
# err to one side it does not cross 0 and hardly falls. The best bins also repair it: their means
# are calibrated on these data.

# %%
best = dce.interval_ce(p, labels)
moved = jnp.mean(jnp.abs(p - best.recalibrated))
print(f"{best}; recalibrating by them moves predictions by {float(moved):.3f} on average")

# %% [markdown]
# A calibrated model of the same size, for comparison. Every measure is positive on a sample; the
# population's line begins at 0, and the p-value finds nothing.

# %%
print(dce.distance_from_calibration(key, *forecasts(data_key, 1.0), **options))

# %% [markdown]
# More than two classes make one such problem for the confidence in the most likely class
# ("top-label"), or one for each class against the rest ("class-wise": a batch of results). The
# probabilities here are those of a model that doubled its log odds.

# %%
truth = jax.random.dirichlet(data_key, jnp.ones(3), (n,))
classes = jax.random.categorical(key, jnp.log(truth))
probabilities = jax.nn.softmax(2 * jnp.log(truth))
print(dce.distance_from_calibration(key, probabilities, classes, notion="top-label", **options))
print(
    dce.distance_from_calibration(
        key, probabilities, classes, notion="class-wise", **options
    ).bracket.low
)

# %% [markdown]
# ## What to do next
#
# - Repair: `dce.recalibrate` gives a function for new predictions, with the distance before and
#   the error after, and says where there is nothing to repair.
# - All classes at once: `jaxcal.skce_test` asks whether they are calibrated, and
#   `jaxcal.calibration_error` how far the largest probability is off (the notebook
#   `squared_calibration_error`).
# - Several classifiers: `jaxcal.compare`, in the notebook `which_model`.
