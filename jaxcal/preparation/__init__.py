"""Data to features: what a test compares, fitted to data, for the engine over pairs."""

from jaxcal.numerics import not_finite
from jaxcal.preparation.parts import MomentResidual
from jaxcal.preparation.prepared import Embedding, Prepared
from jaxcal.preparation.random_features import RandomFeatures
from jaxcal.preparation.redraws import as_forms, rare_targets, refitted, samplable
from jaxcal.preparation.residuals import (
    Featured,
    MeanResidual,
    Residual,
    SteinResidual,
)
from jaxcal.preparation.specification import (
    Keys,
    Options,
    Specification,
    SteinOptions,
    checked_base_measure,
    stein_specification,
    vector_kernel,
    with_random_features,
)
from jaxcal.preparation.views import ClassFrame, Frame, View

__all__ = [
    "ClassFrame",
    "Embedding",
    "Featured",
    "Frame",
    "Keys",
    "MeanResidual",
    "MomentResidual",
    "Options",
    "Prepared",
    "RandomFeatures",
    "Residual",
    "Specification",
    "SteinOptions",
    "SteinResidual",
    "View",
    "as_forms",
    "checked_base_measure",
    "not_finite",
    "rare_targets",
    "refitted",
    "samplable",
    "stein_specification",
    "vector_kernel",
    "with_random_features",
]


def __dir__() -> list[str]:
    return sorted(__all__)
