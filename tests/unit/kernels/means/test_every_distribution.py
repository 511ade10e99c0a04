"""Averages over every distribution of numpyro, in every wrapper, are those of its own draws."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms

from jaxcal.divergences.vectors import class_probabilities
from jaxcal.kernels import Gaussian, L1Laplace
from jaxcal.kernels.means.dispatch import kernel_means
from jaxcal.read.families import Classes, distribution_of

A, B, P = jnp.array([[-1.0, 0.5, 2.0], [0.5, 1.0, 3.0], [0.2, 0.5, 0.9]])


def paired(a):
    return jnp.stack([a, a + 2], axis=-1)


def mixing(p):
    return dist.CategoricalProbs(jnp.stack([p, 1 - p], axis=-1))


NUMBERS = {
    "AsymmetricLaplace": lambda a, b, p: dist.AsymmetricLaplace(a, b, 0.5),
    "AsymmetricLaplaceQuantile": lambda a, b, p: dist.AsymmetricLaplaceQuantile(a, b, p),
    "Beta": lambda a, b, p: dist.Beta(b, 0.7),
    "BetaProportion": lambda a, b, p: dist.BetaProportion(p, 5.0),
    "Cauchy": lambda a, b, p: dist.Cauchy(a, b),
    "Chi2": lambda a, b, p: dist.Chi2(b),
    "Dagum": lambda a, b, p: dist.Dagum(b + 1, 2.0, 1.0),
    "Delta": lambda a, b, p: dist.Delta(a),
    "DoublyTruncatedPowerLaw": lambda a, b, p: dist.DoublyTruncatedPowerLaw(-b, 0.5, 4.0),
    "Exponential": lambda a, b, p: dist.Exponential(b),
    "FoldedDistribution": lambda a, b, p: dist.FoldedDistribution(dist.Normal(a, b)),
    "Gamma": lambda a, b, p: dist.Gamma(b, 0.5),
    "Gompertz": lambda a, b, p: dist.Gompertz(b, 1.0),
    "Gumbel": lambda a, b, p: dist.Gumbel(a, b),
    "HalfCauchy": lambda a, b, p: dist.HalfCauchy(b),
    "HalfNormal": lambda a, b, p: dist.HalfNormal(b),
    "HurdleDistribution": lambda a, b, p: dist.HurdleDistribution(dist.LogNormal(a, 1.0), gate=p),
    "HurdleGamma": lambda a, b, p: dist.HurdleGamma(p, b, 1.0),
    "HurdleLogNormal": lambda a, b, p: dist.HurdleLogNormal(p, a, 0.5),
    "InverseGamma": lambda a, b, p: dist.InverseGamma(b, 2.0),
    "Kumaraswamy": lambda a, b, p: dist.Kumaraswamy(b, 2.0),
    "Laplace": lambda a, b, p: dist.Laplace(a, b),
    "LeftCensoredDistribution": lambda a, b, p: dist.LeftCensoredDistribution(
        dist.Normal(a, b), True
    ),
    "LeftTruncatedDistribution": lambda a, b, p: dist.LeftTruncatedDistribution(
        dist.Laplace(a, b), 0.5
    ),
    "LeftTruncatedGamma": lambda a, b, p: dist.LeftTruncatedGamma(dist.Gamma(b, 1.0), 1.5),
    "Levy": lambda a, b, p: dist.Levy(a, b),
    "Logistic": lambda a, b, p: dist.Logistic(a, b),
    "LogNormal": lambda a, b, p: dist.LogNormal(a, 0.7),
    "LogUniform": lambda a, b, p: dist.LogUniform(b, 5.0),
    "LowerTruncatedPowerLaw": lambda a, b, p: dist.LowerTruncatedPowerLaw(-1 - b, 0.5),
    "MixtureGeneral": lambda a, b, p: dist.MixtureGeneral(
        mixing(p),
        [dist.Normal(a, b), dist.TruncatedNormal(a, b, low=1.0)],
        support=dist.constraints.real,
    ),
    "MixtureSameFamily": lambda a, b, p: dist.MixtureSameFamily(
        mixing(p), dist.Gumbel(paired(a), 1.0)
    ),
    "Normal": lambda a, b, p: dist.Normal(a, b),
    "Pareto": lambda a, b, p: dist.Pareto(0.5, 1 + b),
    "RelaxedBernoulli": lambda a, b, p: dist.RelaxedBernoulli(b, probs=p),
    "RightCensoredDistribution": lambda a, b, p: dist.RightCensoredDistribution(
        dist.Gamma(b, 1.0), True
    ),
    "RightTruncatedDistribution": lambda a, b, p: dist.RightTruncatedDistribution(
        dist.Cauchy(a, b), 0.5
    ),
    "RightTruncatedGamma": lambda a, b, p: dist.RightTruncatedGamma(dist.Gamma(b, 1.0), 1.5),
    "SoftLaplace": lambda a, b, p: dist.SoftLaplace(a, b),
    "StudentT": lambda a, b, p: dist.StudentT(b, a, 1.0),
    "TruncatedCauchy": lambda a, b, p: dist.TruncatedCauchy(a, b, low=0.0),
    "TruncatedDistribution": lambda a, b, p: dist.TruncatedDistribution(
        dist.Logistic(a, b), low=0.0
    ),
    "TruncatedGamma": lambda a, b, p: dist.TruncatedGamma(b, 1.0, low=0.5, high=2.0),
    "TruncatedNormal": lambda a, b, p: dist.TruncatedNormal(a, b, low=0.0),
    "TwoSidedTruncatedDistribution": lambda a, b, p: dist.TwoSidedTruncatedDistribution(
        dist.Normal(a, b), -1.0, 1.0
    ),
    "TwoSidedTruncatedGamma": lambda a, b, p: dist.TwoSidedTruncatedGamma(
        dist.Gamma(b, 1.0), 0.5, 2.0
    ),
    "Uniform": lambda a, b, p: dist.Uniform(a, a + b),
    "VonMises": lambda a, b, p: dist.VonMises(a, b),
    "Weibull": lambda a, b, p: dist.Weibull(b, 2.0),
}
COUNTS = {
    "BernoulliLogits": lambda a, b, p: dist.BernoulliLogits(a),
    "BernoulliProbs": lambda a, b, p: dist.BernoulliProbs(p),
    "BetaBinomial": lambda a, b, p: dist.BetaBinomial(b, 2.0, 9),
    "BetaNegativeBinomial": lambda a, b, p: dist.BetaNegativeBinomial(b + 3, 4.0, 5.0),
    "BinomialLogits": lambda a, b, p: dist.BinomialLogits(a, 9),
    "BinomialProbs": lambda a, b, p: dist.BinomialProbs(p, 9),
    "CategoricalLogits": lambda a, b, p: dist.CategoricalLogits(paired(a)),
    "CategoricalProbs": lambda a, b, p: mixing(p),
    "DiscreteUniform": lambda a, b, p: dist.DiscreteUniform(-2, (2 * b).astype(int)),
    "GammaPoisson": lambda a, b, p: dist.GammaPoisson(b, 1.0),
    "GeometricLogits": lambda a, b, p: dist.GeometricLogits(a),
    "GeometricProbs": lambda a, b, p: dist.GeometricProbs(p),
    "HurdleLogits": lambda a, b, p: dist.HurdleLogits(dist.Poisson(b), a),
    "HurdleNegativeBinomial2": lambda a, b, p: dist.HurdleNegativeBinomial2(p, b, 2.0),
    "HurdlePoisson": lambda a, b, p: dist.HurdlePoisson(p, b),
    "HurdleProbs": lambda a, b, p: dist.HurdleProbs(dist.Poisson(b), p),
    "NegativeBinomial2": lambda a, b, p: dist.NegativeBinomial2(b, 2.0),
    "NegativeBinomialLogits": lambda a, b, p: dist.NegativeBinomialLogits(2.0, a),
    "NegativeBinomialProbs": lambda a, b, p: dist.NegativeBinomialProbs(2.0, p),
    "OrderedLogistic": lambda a, b, p: dist.OrderedLogistic(a, jnp.array([-1.0, 1.0])),
    "Poisson": lambda a, b, p: dist.Poisson(b),
    "ZeroInflatedDistribution": lambda a, b, p: dist.ZeroInflatedDistribution(
        dist.Poisson(b), gate=p
    ),
    "ZeroInflatedLogits": lambda a, b, p: dist.ZeroInflatedLogits(dist.Geometric(probs=p), a),
    "ZeroInflatedNegativeBinomial2": lambda a, b, p: dist.ZeroInflatedNegativeBinomial2(
        b, 2.0, gate=p
    ),
    "ZeroInflatedPoisson": lambda a, b, p: dist.ZeroInflatedPoisson(p, rate=b),
    "ZeroInflatedProbs": lambda a, b, p: dist.ZeroInflatedProbs(dist.Poisson(b), p),
    "thousands of zeros or few": lambda a, b, p: dist.HurdleNegativeBinomial2(p, 3000.0, 0.3),
}
PAIR, ROOTS = paired(A), jnp.array([[[1.0, 0.0], [0.8, 0.5]]]) * B[:, None, None]
VECTORS = {
    "Laplace": lambda: dist.Laplace(PAIR, B[:, None]).to_event(1),
    "LowRankMultivariateNormal": lambda: dist.LowRankMultivariateNormal(
        PAIR, ROOTS[:, :, :1], jnp.ones((3, 2)) / 2
    ),
    "MixtureGeneral": lambda: dist.MixtureGeneral(
        mixing(P),
        [
            dist.MultivariateNormal(PAIR, scale_tril=ROOTS),
            dist.Normal(PAIR, B[:, None]).to_event(1),
        ],
        support=dist.constraints.real_vector,
    ),
    "MixtureSameFamily": lambda: dist.MixtureSameFamily(
        mixing(P), dist.Normal(jnp.stack([PAIR, -PAIR], axis=1), 1.0).to_event(1)
    ),
    "MultivariateNormal": lambda: dist.MultivariateNormal(PAIR, scale_tril=ROOTS),
    "MultivariateStudentT": lambda: dist.MultivariateStudentT(3.0, PAIR, ROOTS),
    "Normal": lambda: dist.Normal(PAIR, B[:, None]).to_event(1),
    "TruncatedNormal": lambda: dist.TruncatedNormal(PAIR, B[:, None], low=0.0).to_event(1),
}
MOVES = [transforms.AffineTransform(1.0, 0.5), transforms.AffineTransform(0.3, -2.0)]
WRAPPERS = {  # of a family of one number
    "ExpandedDistribution": lambda make: make(A[1], B[1], P[1]).expand((3,)),
    "Independent": lambda make: make(A[:, None], B[:, None], P[:, None]).to_event(1),
    "MaskedDistribution": lambda make: make(A, B, P).mask(P < 0.8),
    "TransformedDistribution": lambda make: dist.TransformedDistribution(make(A, B, P), MOVES),
    "AbsTransform": lambda make: dist.TransformedDistribution(
        make(A, B, P), [*MOVES, transforms.AbsTransform()]
    ),
    "all of them": lambda make: (
        make(A[1], B[1], P[1]).expand((3, 1)).mask(P[:, None] < 0.8).to_event(1).mask(P < 0.3)
    ),
}
FEW = ("BinomialProbs", "CategoricalProbs", "Exponential", "Gamma", "Laplace", "Normal")
FEW = (*FEW, "MixtureSameFamily", "TruncatedNormal")


def close_to_draws(predictions, kernel=Gaussian(1.5), m=20_000):
    """Averages at three targets, of pairs, and of each with itself, within 5 standard errors."""
    d = int(np.prod(predictions.event_shape))
    draws = predictions.sample(jax.random.key(0), (2, m))
    one, other = np.asarray(draws, float).reshape(2, m, 3, d)
    ys = np.quantile(one.reshape(-1, d), [0.2, 0.5, 0.8], axis=0)
    means = kernel_means(kernel, predictions, key=1)
    stated = 0.5 * 64**-0.5 if means.error is None else float(means.error)

    def k(gaps):
        gaps = gaps / float(kernel.bandwidth)
        sizes = np.abs(gaps).sum(-1) if isinstance(kernel, L1Laplace) else (gaps**2).sum(-1) / 2
        return np.exp(-sizes)

    for value, sampled, times in [
        (means.first(means.features, jnp.asarray(ys)), k(one[:, :, None] - ys), 1),
        (means.second(means.features, means.features)[0, 1:], k(one[:, :1] - other[:, 1:]), 2),
        (means.own(means.features), k(one - other), 2),
    ]:
        error = np.hypot(sampled.std(0) / m**0.5, times * stated)
        gap = np.abs(np.asarray(value) - sampled.mean(0))
        assert np.all(gap < 5 * error + 1e-6), (means.route, gap / error)


def classes_are_drawn_as_often(predictions, m=40_000):
    draws = np.asarray(predictions.sample(jax.random.key(0), (m,)))
    p = np.asarray(class_probabilities(predictions))
    shares = (draws[:, :, None] == np.arange(p.shape[1])).mean(0)
    assert np.all(np.abs(shares - p) < 5 * np.sqrt(p * (1 - p) / m))


def compared(name, predictions):
    if isinstance(distribution_of(predictions), Classes):
        classes_are_drawn_as_often(predictions)
    else:  # some are sampled by bisection
        close_to_draws(predictions, m=1000 if "TruncatedGamma" in name else 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TruncatedNormal", "LeftTruncatedDistribution", "HurdleGamma"])
def test_a_distribution_inside_another_is_not_read_in_its_place(name):
    close_to_draws(NUMBERS[name](A, B, P))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NUMBERS, *COUNTS])
def test_every_distribution_of_one_number(name):
    compared(name, {**NUMBERS, **COUNTS}[name](A, B, P))


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_wrapper(name, wrapper):
    compared(name, WRAPPERS[wrapper]({**NUMBERS, **COUNTS}[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTORS)
def test_every_distribution_of_a_vector(name):
    predictions = VECTORS[name]()
    kernel = L1Laplace(1.5) if name == "Laplace" else Gaussian(1.5)
    for wrapped in (
        predictions,
        predictions.mask(P < 0.8),
        dist.TransformedDistribution(predictions, MOVES),
    ):
        close_to_draws(wrapped, kernel)
