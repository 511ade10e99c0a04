"""Distance from calibration of binary predictions: measures, bounds, witnesses and their noise.

Start with `distance_from_calibration`. Predictions are probabilities of label 1; for classes say
``notion="top-label"`` or ``"class-wise"`` there, and use `from_classes` before other measures.
"""

from jaxcal.dce import constructions
from jaxcal.dce.binned import BinnedECE, WeightedCE, binned_ece, unbinned_ece, weighted_ce
from jaxcal.dce.bracket import (
    Bracket,
    DistanceResult,
    dce_bracket,
    distance_from_calibration,
)
from jaxcal.dce.intervals import (
    IntervalCE,
    SurrogateCE,
    interval_ce,
    random_interval_ce,
    sampled_interval_ce,
    surrogate_interval_ce,
)
from jaxcal.dce.kernel import Sketch, kernel_ce, pair_sample, random_bins, random_features
from jaxcal.dce.laplace import KernelCE, laplace_ce, laplace_witness
from jaxcal.dce.linear_programs import smooth_ce_linear_program
from jaxcal.dce.lower import Coupling, LowerDistance, lower_distance
from jaxcal.dce.lower_slopes import lower_distance_value
from jaxcal.dce.predictions import from_classes, from_masses
from jaxcal.dce.sample_sizes import SampleSizes, kernel_radius, sample_sizes
from jaxcal.dce.smece import SmoothECE, smece
from jaxcal.dce.smooth import GridSmoothCE, SmoothCE, smooth_ce, smooth_ce_grid
from jaxcal.dce.upper import (
    Domain,
    Partition,
    is_calibrated,
    lift_lower,
    lift_upper,
    true_distance,
    upper_distance,
)

__all__ = [
    "BinnedECE",
    "Bracket",
    "Coupling",
    "DistanceResult",
    "Domain",
    "GridSmoothCE",
    "IntervalCE",
    "KernelCE",
    "LowerDistance",
    "Partition",
    "SampleSizes",
    "Sketch",
    "SmoothCE",
    "SmoothECE",
    "SurrogateCE",
    "WeightedCE",
    "binned_ece",
    "constructions",
    "dce_bracket",
    "distance_from_calibration",
    "from_classes",
    "from_masses",
    "interval_ce",
    "is_calibrated",
    "kernel_ce",
    "kernel_radius",
    "laplace_ce",
    "laplace_witness",
    "lift_lower",
    "lift_upper",
    "lower_distance",
    "lower_distance_value",
    "pair_sample",
    "random_bins",
    "random_features",
    "random_interval_ce",
    "sample_sizes",
    "sampled_interval_ce",
    "smece",
    "smooth_ce",
    "smooth_ce_grid",
    "smooth_ce_linear_program",
    "surrogate_interval_ce",
    "true_distance",
    "unbinned_ece",
    "upper_distance",
    "weighted_ce",
]
