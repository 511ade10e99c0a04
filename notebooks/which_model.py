# %% [markdown]
# # Which of my models should I trust?
#
# Several models predict the same targets. All are a little miscalibrated; which one least? The
# answer should not depend on which inputs happened to be drawn, and a difference should be told
# apart from chance. `compare` gives every model an error in units of probability, and every
# difference an interval and a p-value.

# %%
import os

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from matplotlib.figure import Figure
from sklearn import datasets
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import jaxcal
from jaxcal import ckce, measures, plots

quick = bool(os.environ.get("JAXCAL_QUICK"))
n, draws = (80, 49) if quick else (600, 999)
keys = jax.random.split(jax.random.key(0), 6)

# %% [markdown]
# ## Classifiers
#
# Four classifiers of scikit-learn, as they come, on two of its data sets: breast cancer (two
# classes) and handwritten digits (ten). Each observation is predicted by a fit without it, in five
# folds.

# %%
classifiers = {
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "naive Bayes": make_pipeline(StandardScaler(), GaussianNB()),
    "random forest": RandomForestClassifier(10 if quick else 100, random_state=0),
    "nearest neighbours": make_pipeline(StandardScaler(), KNeighborsClassifier(10)),
}


def predicted(load):
    """Class probabilities of each classifier, and the labels."""
    x, y = load(return_X_y=True)
    rows = slice(200 if quick else None)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    options = {"cv": folds, "method": "predict_proba"}
    models = {
        name: cross_val_predict(classifier, x[rows], y[rows], **options)
        for name, classifier in classifiers.items()
    }
    return models, y[rows]


cancer, cancer_labels = predicted(datasets.load_breast_cancer)
of_cancer = jaxcal.compare(keys[0], cancer, cancer_labels, n_draws=draws)
print(of_cancer)

# %% [markdown]
# Naive Bayes counts correlated measurements as independent evidence, and is too sure: where it says
# 1.00, .95 comes true. It is shown worse than the three others, whose differences 569 observations
# do not decide. The nearest neighbours' own test finds an error (about .02), which is no proof that
# logistic regression is better: its interval contains that value too. Digits are clearer.

# %%
digits, digits_labels = predicted(datasets.load_digits)
of_digits = jaxcal.compare(keys[1], digits, digits_labels, n_draws=draws)
print(of_digits)

# %%
figure = Figure(figsize=(11, 4), layout="constrained")
left, right = figure.subplots(1, 2)
plots.comparison(of_digits, ax=left)
plots.differences(of_digits, ax=right)
figure

# %% [markdown]
# Left: the root mean square error of the probabilities, as a linear recalibration finds it. Right:
# every pair, with p-values that allow for the number of pairs.
#
# Beside it stand the expected calibration error (ECE, 15 bins of the largest probability) and the
# Brier score, of which the ECE has no interval here and is positive for a calibrated model too.

# %%
print(f"{'digits':20s} {'error':>7s} {'ECE':>7s} {'Brier':>7s} {'accuracy':>9s}")
for name, error in zip(of_digits.names, of_digits.error, strict=True):
    q = digits[name]
    row = float(error), float(measures.ece(q, digits_labels))
    scores = ckce.skill(q, digits_labels)
    print(f"{name:20s} {row[0]:7.3f} {row[1]:7.3f}", end="")
    print(f" {float(scores.brier):7.3f} {float(scores.accuracy):9.3f}")

# %% [markdown]
# What to conclude? The random forest is the most accurate of the four, and far from calibrated: an
# average over trees hardly says .9, so its probabilities are too low where it is right. Naive Bayes
# is too sure. Their ECE is nearly the same, .20, because it looks at the largest probability alone
# and takes the absolute size of its error; the error of all classes differs, .12 and .20. To decide
# by the probabilities themselves, take logistic regression. To have the forest's accuracy with
# probabilities that can be used, recalibrate it: its fault has one direction, which
# `jaxcal.repair` corrects.

# %%
forest = jaxcal.repair(keys[3], digits["random forest"], digits_labels)
print(forest)

# %% [markdown]
# With a temperature of .27 the forest's log score falls from .307 to .074, below the .108 of
# logistic regression: the recalibrated forest is the one to use.
#
# ## The same by kernels
#
# `measure="ckce"` finds also what is not linear in the predictions, `measure="skce"` what does not
# cancel between similar predictions; neither number has a unit. Here they rank as above.

# %%
for measure in ("ckce", "skce"):
    result = jaxcal.compare(keys[2], digits, digits_labels, measure=measure, n_draws=draws)
    print(measure, result.ranking(), "may be the best:", result.best())

# %% [markdown]
# CKCE depends on its ridge, and where lines cross so does the ranking. This is CKCE with its label
# noise, of which a model that is nearly sure has little.

# %%
ridges = jnp.geomspace(1e-3, 1, 9)
width = 0.6
paths = {
    name: ckce.ckce(q, cancer_labels, ridge=ridges, bandwidth=width).estimate
    for name, q in cancer.items()
}
figure = Figure(figsize=(6.4, 4), layout="constrained")
ax = figure.subplots()
ax.axvline(len(cancer_labels) ** -0.25, color="0.75", linewidth=4, label="ridge used")
for (name, values), line in zip(paths.items(), ("k-", "k--", "k:", "k-."), strict=True):
    ax.loglog(ridges, values, line, label=name)
ax.set(xlabel="ridge (no unit)", ylabel="CKCE (squared norm)")
ax.legend()
figure

# %% [markdown]
# ## Forecasters
#
# A prediction may be any distribution, or draws from it, by the same call. Three forecasters of a
# number: right, overconfident, biased. The error is still one of probabilities, of the events that
# the number is at most a quantile of the forecast. A line says how many numbers lie in intervals of
# 90 %, and how many below medians.

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
# A log density up to its constant is enough, and the number means the same: such a posterior may
# stand beside a forecast that is a distribution.


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
posteriors["right distribution"] = forecasts["right"]
print(ckce.compare(keys[0], posteriors, numbers, n_draws=draws))

# %% [markdown]
# ## What to do next
#
# - Calibration is not skill: read the scores beside the ranking before you choose.
# - Where is the best one still off? `jaxcal.calibration_test` for densities,
#   `jaxcal.calibration_error` for classes.
# - Groups of cases, such as patients of two hospitals: `jaxcal.compare(.., groups=)`.
