"""The tasks: a question, our words, and each package's with the largest difference allowed.

The bodies of the functions are printed in `notebooks/docs/peers.md` as they ran, less ``d.``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import peers_ours as ours
import peers_theirs as theirs
from peers_data import Data

VERSIONS = {  # that `results.csv` was made with
    "netcal": "1.4.0",
    "probcal": "0.4.0",
    "relplot": "1.0.3",
    "sbi": "0.27.0",
    "scikit-learn": "1.9.1",
    "torchmetrics": "1.9.0",
    "uncertainty-toolbox": "0.1.1",
}
Words = Callable[[Data], Any]


class Peer(NamedTuple):
    package: str
    words: Words
    within: float | None  # the largest difference allowed; None where the numbers are others
    why: str = ""  # they differ


class Task(NamedTuple):
    name: str
    question: str
    ours: Words
    peers: tuple[Peer, ...]


ROUNDING = 1e-12
SINGLE = 1e-6  # computed in float32 on the way
FIT = 1e-4  # of two searches for one minimum

TASKS = (
    Task(
        "ECE",
        "How far are confidences from frequencies: 15 bins of the most likely class?",
        ours.ece,
        (
            Peer("torchmetrics", theirs.torchmetrics_ece, SINGLE),
            Peer("netcal", theirs.netcal_ece, ROUNDING),
            Peer("relplot", theirs.relplot_ece, ROUNDING),
            Peer("probcal", theirs.probcal_ece, ROUNDING),
        ),
    ),
    Task(
        "MCE",
        "The same, of the worst bin",
        ours.mce,
        (
            Peer("torchmetrics", theirs.torchmetrics_mce, SINGLE),
            Peer("netcal", theirs.netcal_mce, ROUNDING),
        ),
    ),
    Task(
        "ECE, equal mass",
        "A binary event, in 15 bins that hold as many observations each",
        ours.equal_mass,
        (Peer("probcal", theirs.probcal_equal_mass, ROUNDING),),
    ),
    Task(
        "reliability curve",
        "How often does it come true, bin by bin?",
        ours.curve,
        (Peer("scikit-learn", theirs.sklearn_curve, ROUNDING),),
    ),
    Task(
        "Brier",
        "Brier score of classes",
        ours.brier,
        (Peer("scikit-learn", theirs.sklearn_brier, ROUNDING),),
    ),
    Task(
        "log loss",
        "Log loss of classes",
        ours.log_loss,
        (Peer("scikit-learn", theirs.sklearn_log_loss, ROUNDING),),
    ),
    Task(
        "smECE",
        "Smooth ECE of a binary event, no bins",
        ours.smece_of_its_own_width,
        (
            Peer(
                "relplot",
                theirs.relplot_smece,
                None,
                "relplot integrates over 200 points, makes four choices of its own, and stops "
                "after ten halvings (`experiments/distance_benchmarks`)",
            ),
            Peer(
                "probcal",
                theirs.probcal_smece,
                None,
                "probcal smooths log odds, where there are no ends; relplot and we smooth "
                "probabilities, with reflection at 0 and 1, as the paper defines it",
            ),
        ),
    ),
    Task(
        "smECE, one width",
        "Smooth ECE at the width 0.1",
        ours.smece_of_width,
        (
            Peer(
                "relplot",
                theirs.relplot_smece_of_width,
                None,
                "relplot uses its mesh and its four choices, which the next task makes too",
            ),
        ),
    ),
    Task(
        "smECE, four switches",
        "The same with relplot's four choices, written for this comparison",
        ours.switched,
        (Peer("relplot", theirs.relplot_smece_of_width, SINGLE),),
    ),
    Task(
        "MMCE",
        "Kernel error of confidences",
        ours.mmce,
        (Peer("netcal", theirs.netcal_mmce, ROUNDING),),
    ),
    Task(
        "SKCE",
        "Squared kernel calibration error of a binary event, unbiased",
        ours.skce,
        (Peer("probcal", theirs.probcal_skce, ROUNDING),),
    ),
    Task(
        "temperature",
        "Which temperature calibrates?",
        ours.temperature,
        (Peer("netcal", theirs.netcal_temperature, FIT),),
    ),
    Task(
        "recalibrated",
        "The probabilities at that temperature",
        ours.recalibrated,
        (Peer("scikit-learn", theirs.sklearn_recalibrated, FIT),),
    ),
    Task(
        "Gaussian log loss",
        "Log loss of Gaussian forecasts",
        ours.nll,
        (
            Peer("uncertainty-toolbox", theirs.toolbox_nll, ROUNDING),
            Peer("netcal", theirs.netcal_nll, ROUNDING),
        ),
    ),
    Task(
        "pinball",
        "Pinball loss over 99 quantiles",
        ours.pinball,
        (Peer("uncertainty-toolbox", theirs.toolbox_pinball, ROUNDING),),
    ),
    Task(
        "CRPS",
        "CRPS, as twice the pinball loss over all quantiles",
        ours.crps,
        (Peer("uncertainty-toolbox", theirs.toolbox_crps, FIT),),
    ),
    Task(
        "quantile curve",
        "Which share of targets lies below the predicted quantiles .05, .10, .., .95?",
        ours.quantile_curve,
        (Peer("uncertainty-toolbox", theirs.toolbox_quantile_curve, ROUNDING),),
    ),
    Task(
        "central interval",
        "Which share lies in the central interval of 95%?",
        ours.central,
        (
            Peer("uncertainty-toolbox", theirs.toolbox_central, ROUNDING),
            Peer("netcal", theirs.netcal_central, ROUNDING),
        ),
    ),
    Task(
        "SBC ranks",
        "Ranks of the parameters among 99 draws of their posteriors",
        ours.ranks,
        (Peer("sbi", theirs.sbi_ranks, ROUNDING),),
    ),
    Task(
        "SBC p-values",
        "Are the ranks uniform? One p-value per parameter",
        ours.uniform,
        (
            Peer(
                "sbi",
                theirs.sbi_uniform,
                None,
                "sbi compares whole numbers 0, .., 99 with the continuous uniform distribution on "
                "[0, 99]; we draw the place between two ranks, and bound the p-value by Massart's "
                "inequality, which is valid at every n and somewhat larger",
            ),
        ),
    ),
)
