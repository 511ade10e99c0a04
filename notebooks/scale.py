# %% [markdown]
# # A million predictions
#
# The tests of this library compare every pair of cases, which ends at about a hundred thousand. The
# kernel between two cases is an inner product, and random features approximate it by one of R
# vectors (Rahimi and Recht, 2007). Then the statistic is the length of a mean, and one pass over
# the data is enough. What does the approximation cost, and what does it buy?
#
# 1. On few cases: the same answer with 100 features as with all pairs?
# 2. On many: a fault that no subsample shows.
# 3. On more than fits into memory: one pass over a file, interrupted and resumed.

# %%
import os
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxcal
from jaxcal import RandomFeatures
from jaxcal.nulls import Eigenvalues
from jaxcal.streaming import StreamedTest, StreamState, array_batches

quick = bool(os.environ.get("JAXCAL_QUICK"))
few, many, streamed = (64, 2_000, 4_000) if quick else (256, 200_000, 1_000_000)
data_sets = 4 if quick else 100
key, feature_key, data_key = jax.random.split(jax.random.key(3), 3)


def log_density(center, y):
    """Of one Gaussian forecast at one target in three dimensions, without its constant."""
    return -jnp.sum((y - center) ** 2) / 2


def cases(key, n, shift):
    """Forecasts, and targets that lie too high in the first coordinate."""
    center_key, noise_key = jax.random.split(key)
    centers = jax.random.normal(center_key, (n, 3))
    targets = centers + jax.random.normal(noise_key, (n, 3))
    return jaxcal.Unnormalized(log_density, centers), targets.at[:, 0].add(shift)


# %% [markdown]
# ## The same answer from features?
#
# One data set, tested with all pairs and with more and more features; then many data sets of a
# fault that all pairs find in most of them.

# %%
NUMBERS = (6, 20) if quick else (6, 20, 100, 300)


def p_values(key, shift):
    """With all pairs, then with each number of features."""
    data_key, test_key, feature_key = jax.random.split(key, 3)
    pairs = cases(data_key, few, shift)
    options = [{}] + [{"features": RandomFeatures(feature_key, number)} for number in NUMBERS]
    results = [
        jaxcal.kccsd_test(test_key, *pairs, null=Eigenvalues(), **option) for option in options
    ]
    return jnp.stack([result.p_value for result in results])


run = jax.jit(jax.vmap(p_values, in_axes=(0, None)))
keys = jax.random.split(data_key, data_sets)
level, power = (np.asarray(run(keys, shift)) for shift in (0.0, 0.25))
print(f"{'':14s}{'rejected if right':>20s}{'if shifted':>14s}")
for name, right, shifted in zip(
    ["all pairs", *(f"{number} features" for number in NUMBERS)], level.T, power.T, strict=True
):
    print(f"{name:14s}{np.mean(right <= 0.05):20.2f}{np.mean(shifted <= 0.05):14.2f}")

# %%
figure, panels = plt.subplots(1, len(NUMBERS), figsize=(11, 3), layout="constrained", sharey=True)
for ax, number, approximate in zip(panels, NUMBERS, power.T[1:], strict=True):
    ax.plot([1e-4, 1], [1e-4, 1], color="0.7", linewidth=0.8)
    ax.plot(power[:, 0], approximate, "ko", markersize=3, fillstyle="none")
    ax.set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1), xlabel="p, all pairs")
    ax.set_title(f"{number} features", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("p, random features")
plt.show()

# %% [markdown]
# With 100 features p-values are nearly those of all pairs, and with 300 they can hardly be told
# apart. Few features cost power (.69 with 6, where all pairs find the shift in .88 of data sets),
# and no level: a test with any of them is a test of its own.
#
# ## A fault that only many cases show
#
# A shift of a hundredth of a standard deviation is nothing for a single decision, and a lot for a
# sum over all customers. `Eigenvalues` gives small p-values from the spectrum of the features'
# covariance, without draws, with its error stated.

# %%
SHIFT = 0.1 if quick else 0.01
forecasts, targets = cases(data_key, many, SHIFT)


def test(n):
    """The linear-time test of the first n cases."""
    return jaxcal.kccsd_test(
        key,
        jaxcal.Unnormalized(log_density, forecasts.params[:n]),
        targets[:n],
        features=RandomFeatures(feature_key, 100),
        null=Eigenvalues(),
    )


for n in (many // 100, many // 10, many):
    print(f"n = {n:7,d}: p = {float(test(n).p_value):.2g}")

# %% [markdown]
# ## More than fits into memory
#
# A test is fitted to a first sample: units, bandwidths, base points and frequencies are fixed then,
# and the report says of how many. After that batches come from any iterator, here from two arrays
# on disk of which one batch is read at a time. The state is a few hundred kilobytes, whatever the
# length of the stream. It is saved on the way, and a pass that was stopped goes on where it was.
#
# These forecasts are probabilities of three classes, a little too sure of themselves.

# %%
random = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
logits = random.normal(size=(streamed, 3)).astype(np.float32)
gumbel = random.gumbel(size=logits.shape)
np.save(folder / "labels.npy", np.argmax(0.97 * logits + gumbel, axis=1))
np.save(folder / "probabilities.npy", np.asarray(jax.nn.softmax(logits)))
del logits, gumbel

probabilities = np.load(folder / "probabilities.npy", mmap_mode="r")
labels = np.load(folder / "labels.npy", mmap_mode="r")
first = len(labels) // 500
stream = StreamedTest.skce(
    key, probabilities[:first], labels[:first], features=RandomFeatures(feature_key, 100)
)


def batches():
    return array_batches(len(labels) // 50, probabilities, labels)


class Stopped(Exception):
    """Power went off, or a machine was taken away."""


def until(count):
    """Batches, and then the end of everything."""
    for number, batch in enumerate(batches()):
        if number == count:
            raise Stopped
        yield batch


try:
    stream.run(until(20), checkpoint=folder / "state.npz", every=10)
except Stopped:
    print(f"stopped; saved: {StreamState.load(folder / 'state.npz').n:,d} cases")
state = stream.run(batches(), checkpoint=folder / "state.npz")
print(stream.result(state))

# %% [markdown]
# Parts that other processes or machines have seen add up, in any order, to the same sums: `merge`.

# %%
parts = list(batches())
left, right = stream.run(parts[:20]), stream.run(parts[20:])
merged = stream.result(right.merge(left))
print(f"whole: {stream.result(state).estimate:.6g}, in two parts: {merged.estimate:.6g}")

# %% [markdown]
# ## What to do next
#
# - Parquet shards and folders of arrays: `jaxcal.streaming.Shards`, or without Python
#   `python -m jaxcal check FOLDER --state FILE`. A PyTorch loader is an iterator too.
# - Many processes or machines: `StreamState.over_processes`, with a launcher in
#   `experiments/processes`.
# - The power of R features beside all pairs, and their cost, are in `experiments/linear`; what a
#   test costs from a laptop to a cluster is on the page on scaling.
# - A tiny fault is always found in the end. Ask how large it is before you act on it: the limits of
#   shifts in `kccsd_test(.., coordinates=True)`, or `calibration_error` for classes.
