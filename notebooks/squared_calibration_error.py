# %% [markdown]
# # How large is the calibration error of my classifier?
#
# A classifier gives probabilities for five classes. We hold cases with their true class, which the
# classifier has not seen. Is the whole probability vector right, and if not, by how much? The first
# lines of the report say so, from every case, with an interval. Many tuned estimators answer that
# too, and they disagree. Here they are compared by their *risk* on validation folds, and the answer
# of the best is made on test cases that had no part in the choice.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from jaxcal import squared_ce
from jaxcal.plots.comparisons import calibration_errors

quick = bool(os.environ.get("JAXCAL_QUICK"))
n = 120 if quick else 1000
keys = jax.random.split(jax.random.key(0), 3)

# %% [markdown]
# The classifier below is right nine times in ten but hides it: its probabilities are those of the
# truth, to the power 0.3 and normalized. Because it is simulated we know its error, the root mean
# square of the distance between the two vectors: 0.2516.

# %%
with jax.enable_x64(True):
    truth_key, label_key = jax.random.split(keys[0])
    # logarithms, up to a constant, of draws from Dir(0.04, .., 0.04), often too small for a float
    log_truth = jax.random.loggamma(truth_key, jnp.full((n, 5), 0.04))
    labels = np.asarray(jax.random.categorical(label_key, log_truth))
    probabilities = np.asarray(jax.nn.softmax(0.3 * log_truth))

report = squared_ce.calibration_error(
    keys[1],
    probabilities,
    labels,
    notion="canonical",
    estimators="paper",
    folds=2 if quick else 5,
)
print(report)

# %% [markdown]
# The error and the interval at the top are those to quote: every case is tested against a fit to
# all others, and the interval holds the 0.2516 that we know. They need no estimator of the table,
# and without `estimators=` they are all that is printed.
#
# Every row of the table is an estimator with its hyperparameter tuned on the same folds. The risks
# are close: most of a risk is noise that no estimator can explain, and only differences count. "At
# least" is a lower bound with a guarantee: the error is above it in 95 of 100 test samples, however
# badly the estimator fits.
#
# The error beside the lowest risk is what that tuned function explains by itself, and a smooth one
# explains too little of an error as large as this one. The interval from the test cases adds in one
# step what they say on top: most of it lies above that 0.20.

# %%
figure = Figure(figsize=(10, 3.6), layout="constrained")
left, right = figure.subplots(1, 2)
calibration_errors(report, ax=left)
kde = report.estimators["kde"]
widths, risks = [setting["bandwidth"] for setting in kde.grid], kde.risks[0]
order = np.argsort(widths)
right.semilogx(np.array(widths)[order], risks.mean(axis=0)[order], "k-")
right.axvline(widths[kde.chosen[0]], color="0.75", linewidth=4, zorder=0)
right.set(xlabel="bandwidth of kde (marked: the choice)", ylabel="mean validation risk")
figure

# %% [markdown]
# Is the first estimator in the table really better than the second? A paired test on the test cases
# compares their risks pair by pair. It is a statement about estimators; the error to quote stays
# that from every case. Here the difference is small and not chance.

# %%
first, second = (row["estimator"] for row in report.table()[:2])
gap = report.compare(first, second)
print(f"risk of {first} minus {second}: {float(gap.difference):.2e}, p = {float(gap.p_value):.2f}")

# %% [markdown]
# Only the confidence in the predicted class matters to you? That is the top-label notion, for which
# bins are estimators too, here with their number tuned like everything else. Quote the first lines
# here too.

# %%
confidence = squared_ce.calibration_error(
    keys[2],
    probabilities,
    labels,
    estimators=[squared_ce.Bins(15), squared_ce.Bins(), squared_ce.KernelRidge(rank=40)],
    folds=2 if quick else 5,
)
print(confidence)

# %% [markdown]
# ## What to do next
#
# - Is the error more than chance? `jaxcal.skce_test`, for all classes at once.
# - For two classes, a bracket that needs no bins and no estimator: the notebook
#   `distance_from_calibration`.
# - Repair: `jaxcal.measures.fit_temperature`, then ask again on fresh cases.
