"""Fitting a test to data: units, nodes, scores, features, bandwidths and statistic."""

from jaxcal.fit.fitted import Embedding, Fitted
from jaxcal.fit.moment_residual import MomentResidual
from jaxcal.fit.options import (
    Options,
    SteinOptions,
    checked_base_measure,
    stein_specification,
    vector_kernel,
    with_random_features,
)
from jaxcal.fit.redraws import as_forms, kernel_residual, rare_targets, refitted, samplable
from jaxcal.fit.residuals import (
    ClassFrame,
    Featured,
    Frame,
    MeanResidual,
    Residual,
    SteinResidual,
    View,
)
from jaxcal.fit.specification import Keys, RandomFeatures, Specification
from jaxcal.numerics import not_finite

__all__ = [
    "ClassFrame",
    "Embedding",
    "Featured",
    "Fitted",
    "Frame",
    "Keys",
    "MeanResidual",
    "MomentResidual",
    "Options",
    "RandomFeatures",
    "Residual",
    "Specification",
    "SteinOptions",
    "SteinResidual",
    "View",
    "as_forms",
    "checked_base_measure",
    "kernel_residual",
    "not_finite",
    "rare_targets",
    "refitted",
    "samplable",
    "stein_specification",
    "vector_kernel",
    "with_random_features",
]
__dir__ = __all__.copy  # completion shows the public names
