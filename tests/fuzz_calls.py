"""Valid calls of every public name at 12 observations: what a fuzz then changes one by one."""

import equinox as eqx
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import numpy as jnp
from reference.calibration_functions import fit_one

import jaxcal
from jaxcal import candidates, dce, divergences, kernels, squared_ce, streaming, whitening
from jaxcal import read as models
from jaxcal.skce.estimates import BlockEstimates
from jaxcal.squared_ce.pipeline import Report

# programs whose values the host goes on with: these are not only traced
RUN = ("atoms", "_n_repeated", "_copies")
RNG = np.random.default_rng(0)
N = 12
YS, INPUTS = RNG.normal(size=(N, 2)), RNG.normal(size=(N, 2))
P, Y = np.linspace(0.1, 0.9, N), np.arange(N) % 2
PS, LABELS = RNG.dirichlet(np.ones(3), N), np.arange(N) % 3
MODELS = np.stack([PS, PS[::-1]])
SCORES = models.Scores(-YS, RNG.normal(size=(N, 4, 2)), RNG.normal(size=(4, 2)))
NORMALS = dist.MultivariateNormal(jnp.asarray(YS), jnp.eye(2))
UNIVARIATE = dist.Normal(jnp.asarray(P), 1.0)
DRAWS = models.Draws(RNG.normal(size=(N, 5, 2)))
PROBLEM = squared_ce.reduce(P, Y, "binary")
FITTED = fit_one(squared_ce.Bins(2), PROBLEM)


def density(params, y):
    return -0.5 * jnp.sum((y - params) ** 2)


DENSITIES = models.Unnormalized(density, jnp.asarray(YS))
BY_KEY = {"key": 0, "predictions": NORMALS, "targets": YS}
CLASSES = {"predictions": PS, "targets": LABELS}
BINARY = {"predictions": P, "targets": Y}
AT_TARGETS = {"predictions": DENSITIES, "targets": YS}
IN_UNITS = {"centers": np.zeros((1, 2)), "scales": np.eye(2)[None]}
LABELLED = {"predictions": PS, "targets": LABELS}
PRIOR = dist.Normal(jnp.zeros(2), 1.0).to_event(1)
MORE = np.random.default_rng(1).normal(size=(2 * N, 2))
SAMPLES = {"thetas": YS, "xs": INPUTS, "key": 0}


def log_prob(theta, x):
    return -0.5 * jnp.sum((theta - x) ** 2)


def probabilistic(x):
    theta = numpyro.sample("theta", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("x", dist.Normal(theta, 1.0).to_event(1), obs=x)


class Network(eqx.Module):
    """Two networks of one architecture, as `rank_posteriors` takes them."""

    slopes: jnp.ndarray = eqx.field(default_factory=lambda: jnp.ones((2, 1)))

    def __call__(self, theta, x):
        return log_prob(theta, self.slopes * x)


WITHOUT = {  # and why
    "load": "its argument is a file",
    "Shards": "its argument is a folder of files",
    "TorchPosterior": "the table `torch` has it, which needs torch",
}


def recipes():
    """The arguments of one valid call a name, by subpackage."""
    by_target = {"predictions": UNIVARIATE, "targets": P}
    scored = {"key": 0, "predictions": SCORES, "targets": YS}
    small = {"estimators": [squared_ce.Bins(2)], "folds": 2}
    top = {
        "Draws": {"samples": RNG.normal(size=(N, 5, 2))},
        "LogDensities": {"at_targets": YS[:, 0], "at_draws": RNG.normal(size=(N, 5))},
        "Scores": {"at_targets": YS},
        "RandomFeatures": {"key": 0},
        "Unnormalized": {"log_density": density, "params": YS},
        "calibration_error": {"key": 0, **LABELLED, **small},
        "calibration_test": {"key": 0, "predictions": DENSITIES, "targets": YS},
        "repair": {"key": 0, "predictions": DENSITIES, "targets": YS},
        "check": {"key": 0, "predictions": SCORES, "targets": YS},
        "streamed_check": {"key": 0, **BINARY},
        "compare": {"key": 0, "models": MODELS, "targets": LABELS},
        "distance_from_calibration": {"key": 0, **BINARY},
        "explain": {"result": Lazy("kccsd_test")},
        "kccsd": scored,
        "kccsd_test": scored,
        "kce": BY_KEY,
        "kcsd": {**scored, "inputs": INPUTS},
        "kcsd_test": {**scored, "inputs": INPUTS},
        "ksd": {"key": 0, "model": SCORES, "targets": YS},
        "ksd_test": {"key": 0, "model": SCORES, "targets": YS},
        "mcmc_draws": {
            "key": 0,
            "predictions": DENSITIES,
            "n_samples": 4,
            "n_warmup": 2,
            "thin": 1,
            "event_shape": 2,
        },
        "moment_test": {"key": 0, "predictions": DENSITIES, "targets": YS},
        "skce_test": BY_KEY,
        "ucme_test": BY_KEY,
    }
    top["skce_interval"] = {"result": block_estimates}
    mcmc = {
        "mcmc_draws": top["mcmc_draws"],
    }
    chains = candidates.Candidates(YS[:, None], P[:, None], P[:, None], 1.0)
    several = {
        "Drawn": {"draws": RNG.normal(size=(N, 9, 2))},
        "exchangeability_test": {"key": 0, "predictions": DENSITIES, "targets": YS},
        "ranks": {"key": 0, "candidates": chains},
    }
    single = {"predictions": UNIVARIATE}
    measured = {
        "ece": LABELLED,
        "fit_temperature": {"predictions": PS, "targets": LABELS, "steps": 2},
        "reliability": {"confidence": P, "correct": Y},
        "nll": by_target,
        "pinball_loss": by_target,
        "pit": by_target,
        "quantile_calibration": by_target,
        "quantiles": single,
        "confidences": LABELLED,
        "with_temperature": {"predictions": UNIVARIATE, "temperature": 2.0},
    }
    compared = {
        "ckce": {**CLASSES, "given": INPUTS},
        "LowRank": {"rank": 3},
        "ckce_test": {"key": 0, **CLASSES},
        "compare": top["compare"],
        "skill": CLASSES,
    }
    squared = {
        "calibration_error": top["calibration_error"],
        "empirical_risk": {"h": FITTED, "problem": PROBLEM},
        "leave_one_out": {"problem": PROBLEM},
        "reduce": {**LABELLED, "notion": "top-label"},
        "softmax": {"logits": PS},
    }
    binary = (
        "binned_ece unbinned_ece interval_ce kernel_ce "
        "lower_distance smooth_ce "
        "surrogate_interval_ce"
    )
    distances = dict.fromkeys(binary.split(), BINARY)
    distances |= {
        "distance_from_calibration": top["distance_from_calibration"],
        "recalibrate": {"key": 0, **BINARY},
        "Table": {},
    }
    return {
        "": top,
        "kernels": {
            "ClassGram": {"matrix": np.eye(3)},
        },
        "divergences": {
            "GradientKernel": {"kernel": kernels.Gaussian(1.0)},
            "Vectors": {"values": YS},
        },
        "mcmc": mcmc,
        "skce": {
            "block_estimates": BY_KEY,
            "kce": BY_KEY,
            "skce": BY_KEY,
            "skce_interval": top["skce_interval"],
            "skce_test": BY_KEY,
        },
        "ucme": {"ucme_test": BY_KEY, "ucme": BY_KEY},
        "coverage": {
            "coverage": {"predictions": DENSITIES, "targets": YS, "draws": DRAWS},
        },
        "candidates": several,
        "measures": measured,
        "ckce": compared,
        "squared_ce": squared,
        "dce": distances,
        "plots": plots(),
        "methods": methods(),
        "torch": {"TorchPosterior": {"posterior": lambda x: None}},
        "sbi": {
            "JaxPosterior": {"log_prob": log_prob},
            "NumpyroPosterior": {"model": probabilistic},
            "check_draws": {"key": 0, "draws": RNG.normal(size=(N, 9, 2)), "thetas": YS},
            "predictions": {"posterior": log_prob, "xs": INPUTS},
            "rank_posteriors": {"models": Network(), **SAMPLES},
            "check_posterior": {"posterior": log_prob, **SAMPLES},
            "monitor": {
                "posterior": log_prob,
                "prior": PRIOR,
                "key": 0,
                "thetas": MORE,
                "xs": MORE + 1,
            },
            "repair_posterior": {"posterior": log_prob, "prior": PRIOR, **SAMPLES},
            "score_pairs": {"posterior": log_prob, **SAMPLES},
        },
        "data": {},
        "nulls": {},
        "read": {
            **{name: top[name] for name in ("Draws", "LogDensities", "Scores", "Unnormalized")},
            "draws": {"key": 0, "predictions": NORMALS, "m": 3},
            "gaussian_moments": {"predictions": NORMALS},
        },
        "streaming": {
            "StreamState": {},
            "array_batches": {"size": 4},
        },
        "moments": {
            "Exchangeable": {"n_candidates": 4, "scale": 1.0},
        },
        "whitening": {
            "Landing": {"steps": 2, "form": "full"},
            "LocationScale": {"whitener": whitening.Regression()},
            "Moments": {"mean": YS, "covariance": YS**2, "form": "full"},
            "Regression": {"form": "full"},
        },
    }


def all_batches(size, arrays):
    return list(streaming.array_batches(size, arrays, YS))


def with_bandwidth(bandwidth):
    return jaxcal.skce_test(**BY_KEY, prediction_kernel=kernels.Gaussian(bandwidth))


def with_vectors(values):
    return jaxcal.skce_test(**BY_KEY, divergence=divergences.Vectors(values))


# what users call on results and problems, an iterator to its end, and parts of arguments
METHODS = {
    "BlockEstimates.lower_bound": BlockEstimates.lower_bound,
    "Report.compare": Report.compare,
    "Table.of": dce.Table.of,
    "Table.grouped": dce.Table.grouped,
    "array_batches": all_batches,
    "Gaussian": with_bandwidth,
    "Vectors": with_vectors,
}
OF_TORCH = {"TorchPosterior": jaxcal.sbi.TorchPosterior}


def methods():
    report, names = Lazy("calibration_error"), {"first": "2 bins", "second": "2 bins"}
    return {
        "BlockEstimates.lower_bound": {"self": block_estimates, "level": 0.1},
        "Report.compare": {"self": report, **names},
        "Table.of": BINARY,
        "Table.grouped": {"counts": np.ones(N, int), **BINARY},
        "array_batches": {"size": 4, "arrays": YS},
        "Gaussian": {"bandwidth": 1.0},
        "Vectors": {"values": YS},
    }


def plots():
    tested = Lazy("kccsd_test")
    return {
        "comparison": {"result": Lazy("compare")},
        "differences": {"result": Lazy("compare")},
        "contributions": {"result": tested},
        "coordinates": {"result": Lazy("kccsd_test", coordinates=True)},
        "null_histogram": {"result": tested},
        "parts": {"result": Lazy("calibration_test")},
        "table": {"result": Lazy("calibration_test")},
        "rejections": {"x": [10, 20], "p_values": {"a": RNG.uniform(size=(2, 5))}},
        "reliability": {"result": Lazy("reliability", "measures")},
        "where": {"result": Lazy("calibration_test"), "x": P},
    }


class Lazy:
    """What a public name returns for its valid arguments, called when wanted."""

    def __init__(self, name, subpackage="", **options):
        self.name, self.subpackage, self.options = name, subpackage, options


block_estimates = Lazy("block_estimates", "skce")
