"""Gaussian kernels averaged over scale mixtures of normals, by quadrature over the scale."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxcal.kernel_means.dispatch import (
    Averages,
    Formulas,
    NoClosedForm,
    pair,
    stated_rules,
)
from jaxcal.kernel_means.mixtures import over_mixtures
from jaxcal.kernels.points import Scaled, Sum
from jaxcal.models.families import Mixtures, Normals
from jaxcal.models.scale_rules import ScaleRules
from jaxcal.numerics import safe_sqrt
from jaxcal.typing import KernelLike, Scalar


class OverScales(eqx.Module):
    """Formulas of the mixture of normals that a rule is, with the rule's error."""

    inner: Formulas
    error: Scalar
    route: str = eqx.field(static=True, default="quadrature over the scale")

    def first(self, rows: PyTree, ys: Array) -> Array:
        return self.inner.first(rows, ys)

    def second(self, rows: PyTree, cols: PyTree) -> Array:
        return self.inner.second(rows, cols)

    def own(self, features: PyTree) -> Array:
        return self.inner.own(features)


@pair(Sum, ScaleRules)
@pair(Scaled, ScaleRules)
@pair(object, ScaleRules)
def over_the_scales(kernel: KernelLike, distribution: ScaleRules) -> Averages:
    """Kernels with a closed form over normals.

    The error bounds the difference between an average and that of twice as many nodes, for
    kernels of height 1 and any target: the distance of the two mixtures in the space of the kernel
    (Cauchy and Schwarz), plus the probability that both leave out.
    """
    coarse, fine, outside = distribution
    features, inner = over_mixtures(kernel, coarse)
    if stated_rules(inner):
        raise NoClosedForm("a rule for the kernel within one for the scale costs more than draws")
    parts = [jnp.concatenate(both, axis=1) for both in zip(coarse.parts, fine.parts, strict=True)]
    weights = jnp.concatenate([coarse.weights, -fine.weights], axis=1)
    gaps, of_gaps = over_mixtures(kernel, Mixtures(weights, Normals(*parts)))
    origin = jnp.zeros(coarse.parts.mean.shape[-1], weights.dtype)
    squares = jnp.max(of_gaps.own(gaps)) / kernel(origin, origin)
    rounding = safe_sqrt(jnp.asarray(jnp.finfo(weights.dtype).eps, weights.dtype))
    error = jnp.maximum(safe_sqrt(jnp.maximum(squares, 0)), rounding) + jnp.max(outside)
    return features, OverScales(inner, error)
