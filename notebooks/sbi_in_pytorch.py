# %% [markdown]
# # Is my posterior from `sbi` right?
#
# A posterior that a network learned from simulations can be too narrow, shifted, or blind to part
# of the data, and nothing in its training says so. This notebook trains one with
# [`sbi`](https://sbi-dev.github.io/sbi), checks it with one call, reads off what is wrong, and
# repairs it until it passes. Everything here is PyTorch.

# %%
import os
import warnings

import torch
from sbi.inference import NPE
from torch.distributions import MultivariateNormal

from jaxcal.sbi import check_posterior

warnings.filterwarnings("ignore")
quick = bool(os.environ.get("JAXCAL_QUICK"))
few, many, tested = (40, 80, 40) if quick else (200, 10_000, 300)
epochs = 3 if quick else 200
torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## A simulator
#
# A signal decays: $x_t = a\, e^{-r t}$ plus noise at six times. Unknown are the logarithms of the
# amplitude $a$ and of the rate $r$.

# %%
names = ["log amplitude", "log rate"]
prior = MultivariateNormal(torch.zeros(2), 0.25 * torch.eye(2))
times = torch.linspace(0.0, 2.5, 6)


def simulate(theta):
    signal = torch.exp(theta[:, :1] - torch.exp(theta[:, 1:]) * times)
    return signal + 0.1 * torch.randn_like(signal)


def train(simulations, **options):
    theta = prior.sample((simulations,))
    inference = NPE(prior, density_estimator="mdn", show_progress_bars=False)
    inference.append_simulations(theta, simulate(theta)).train(**options)
    return inference.build_posterior()


# %% [markdown]
# ## A hasty posterior
#
# Two hundred simulations, and training goes on long after the validation loss has turned up.

# %%
hasty = train(few, max_num_epochs=epochs, stop_after_epochs=epochs)

# %% [markdown]
# ## The check
#
# It needs pairs that the network has not seen: parameters from the prior, and a simulation from
# each. The first argument is a seed. This posterior has a log density and draws cheaply, so the
# check uses both; for NLE and NRE, where each draw is a step of MCMC, it makes do with the density
# and runs no MCMC.

# %%
theta = prior.sample((tested,))
x = simulate(theta)
report = check_posterior(0, hasty, theta, x, names=names)
print(report)

# %% [markdown]
# The verdict counts all p-values together. Below it stand the two questions with what was asked of
# each, then what is off: the parameter, the direction, the size with its limits. The figure shows
# the same: **a** ranks of each parameter among draws (SBC) with the band that holds them if all is
# right; **b** how many parameters lie in highest-density regions; **c** shift, spread and
# correlation with limits; **d** the strongest error along the feature of x with which it changes.

# %%
report.figure()

# %% [markdown]
# ## The repair
#
# Here parameters lie too high and most posteriors are too wide, while a few pairs lie far outside
# of theirs, as a note says: two hundred simulations learned by heart. The cure is more of them, and
# to stop in time. The network, the simulator and the tested pairs stay the same.

# %%
repaired = train(many, max_num_epochs=epochs)
again = check_posterior(0, repaired, theta, x, names=names)
print(again)

# %%
again.figure()

# %% [markdown]
# ## What to remember
#
# - No evidence is not proof: with 300 pairs, errors of about a tenth of a standard deviation stay
#   unseen. The limits in the table say what is excluded.
# - Check on fresh pairs, once. A posterior that was tuned until it passed needs new pairs.
# - A posterior can be calibrated and still leave out information in x: the prior is. This is what
#   the second question is for. If x is an image or a long series, pass `summaries=`.
# - `report.p_values()`, `report.findings()` and `report.to_dict()` hold all of this for programs.
#
# ## What to do next
#
# - Your own simulator: the same call, `jaxcal.sbi.check_posterior(key, posterior, thetas, xs)`.
# - With draws alone, of BayesFlow or ArviZ: `jaxcal.sbi.check_draws`.
# - How many pairs does a fault take? The notebook `power`.
