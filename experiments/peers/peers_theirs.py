"""The tasks in the words of other packages, imported on use; `peers_ours.py` has jaxcal's."""

from typing import Any

from peers_data import Data

# Classes


def torchmetrics_ece(d: Data) -> Any:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    probabilities, labels = torch.tensor(d.probabilities), torch.tensor(d.labels)
    return multiclass_calibration_error(probabilities, labels, num_classes=4, n_bins=15)


def netcal_ece(d: Data) -> Any:
    from netcal.metrics import ECE

    return ECE(bins=15).measure(d.probabilities, d.labels)


def relplot_ece(d: Data) -> Any:
    import relplot

    return relplot.metrics.binnedECE(d.confidence, d.correct, nbins=15)


def probcal_ece(d: Data) -> Any:
    import probcal

    return probcal.metrics.ece(d.correct, d.confidence, n_bins=15, strategy="width")


def torchmetrics_mce(d: Data) -> Any:
    import torch
    from torchmetrics.functional.classification import multiclass_calibration_error

    probabilities, labels = torch.tensor(d.probabilities), torch.tensor(d.labels)
    return multiclass_calibration_error(probabilities, labels, num_classes=4, n_bins=15, norm="max")


def netcal_mce(d: Data) -> Any:
    from netcal.metrics import MCE

    return MCE(bins=15).measure(d.probabilities, d.labels)


def probcal_equal_mass(d: Data) -> Any:
    import probcal

    return probcal.metrics.ece(d.y, d.p, n_bins=15, strategy="mass")


def sklearn_curve(d: Data) -> Any:
    from sklearn.calibration import calibration_curve

    came_true, _ = calibration_curve(d.correct, d.confidence, n_bins=15)
    return came_true


def sklearn_brier(d: Data) -> Any:
    from sklearn.metrics import brier_score_loss

    return brier_score_loss(d.labels, d.probabilities)


def sklearn_log_loss(d: Data) -> Any:
    from sklearn.metrics import log_loss

    return log_loss(d.labels, d.probabilities)


def relplot_smece(d: Data) -> Any:
    import relplot

    return relplot.smECE(d.p, d.y)


def probcal_smece(d: Data) -> Any:
    import probcal

    return probcal.metrics.smooth_ece(d.y, d.p)


def relplot_smece_of_width(d: Data) -> Any:
    import relplot

    return relplot.smECE_sigma(d.p, d.y, 0.1)


def netcal_mmce(d: Data) -> Any:
    from netcal.metrics import MMCE

    return MMCE().measure(d.probabilities, d.labels)


def probcal_skce(d: Data) -> Any:
    import probcal

    return probcal.metrics.skce(d.y, d.p, kernel="laplace", bandwidth=0.3)


def netcal_temperature(d: Data) -> Any:
    from netcal.scaling import TemperatureScaling

    scaling = TemperatureScaling().fit(d.probabilities, d.labels)
    return 1 / scaling.temperature  # netcal's is the factor


def sklearn_recalibrated(d: Data) -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator
    from sklearn_classifier import OfLogits

    classifier = FrozenEstimator(OfLogits().fit(d.logits, d.labels))
    scaled = CalibratedClassifierCV(classifier, method="temperature")
    return scaled.fit(d.logits, d.labels).predict_proba(d.logits)


# Numbers with Gaussian forecasts


def toolbox_nll(d: Data) -> Any:
    import uncertainty_toolbox as uct

    return uct.nll_gaussian(d.mean, d.sd, d.targets)


def netcal_nll(d: Data) -> Any:
    from netcal.metrics import NLL

    return NLL().measure((d.mean, d.sd), d.targets, reduction="mean")


def toolbox_pinball(d: Data) -> Any:
    import uncertainty_toolbox as uct

    return uct.check_score(d.mean, d.sd, d.targets)


def toolbox_crps(d: Data) -> Any:
    import uncertainty_toolbox as uct

    return uct.crps_gaussian(d.mean, d.sd, d.targets)


def toolbox_quantile_curve(d: Data) -> Any:
    import uncertainty_toolbox.metrics_calibration as uct

    _, observed = uct.get_proportion_lists_vectorized(
        d.mean, d.sd, d.targets, num_bins=21, prop_type="quantile"
    )
    return 1 - observed[::-1][1:-1]  # its share at tau is of targets above the quantile 1 - tau


def toolbox_central(d: Data) -> Any:
    import uncertainty_toolbox.metrics_calibration as uct

    return uct.get_proportion_in_interval(d.mean, d.sd, d.targets, 0.95)


def netcal_central(d: Data) -> Any:
    from netcal.metrics import PICP

    return PICP().measure((d.mean, d.sd), d.targets, q=0.95).picp


# Posteriors of which there are draws


def sbi_ranks(d: Data) -> Any:
    import torch
    from posterior_of_draws import Posterior
    from sbi.diagnostics import run_sbc

    thetas, xs = torch.tensor(d.thetas), torch.tensor(d.xs)
    ranks, _ = run_sbc(thetas, xs, Posterior(d.draws[:, :-1]), num_posterior_samples=99)
    return ranks


def sbi_uniform(d: Data) -> Any:
    import torch
    from posterior_of_draws import Posterior
    from sbi.diagnostics import check_sbc, run_sbc

    thetas, xs = torch.tensor(d.thetas), torch.tensor(d.xs)
    ranks, of_data = run_sbc(thetas, xs, Posterior(d.draws[:, :-1]), num_posterior_samples=99)
    return check_sbc(ranks, thetas, of_data, num_posterior_samples=99)["ks_pvals"]
