"""Print how a test was fitted, in six steps with shapes, choices and equations."""

import inspect
import re
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxcal.fit.fitted import Fitted
from jaxcal.fit.moment_residual import MomentResidual
from jaxcal.fit.residuals import Featured, Frame, MeanResidual, SteinResidual
from jaxcal.fit.specification import Specification
from jaxcal.kernels.points import Constant, Product, Scaled, Sum
from jaxcal.read import Scores, checks
from jaxcal.read.families import Classes
from jaxcal.results import TestResult

STEPS = ("units", "nodes", "scores", "features", "bandwidths", "statistic")


def explain(result: TestResult) -> None:
    """Print the six steps by which a test was fitted, with choices, shapes and equations.

    In the equations y_i are targets [d], p_i their predictions, and l is the target kernel. The
    last lines hold the estimate, the null, and what limits the result.

    Args:
        result: Result of `calibration_test`, or of a test over pairs of observations: `kccsd_test`,
            `kcsd_test`, `ksd_test`, `skce_test`, `moment_test` or `ucme_test`. Results of other
            tests, and a batch of results, raise ValueError.

    Returns:
        None: the steps are printed; ``result.steps`` holds their texts.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> result = jaxcal.kccsd_test(1, dist.Normal(centers, 1.0), centers + noise)
        >>> jaxcal.explain(result)  # doctest: +ELLIPSIS
        KCCSD test, n = 100
        1 units       t = (y - mean) / sd of the targets, [100, 1]
        2 nodes       z_1, .., z_10 from N(0, I) in these units, [10, 1]
        3 scores      s_i = grad log p_i at the target, [100, 1], and at the nodes, [100, 10, 1]
        ...
    """
    checks.instance(result, TestResult, "result")
    if not result.steps or result.batch_shape:
        raise ValueError(
            "result: wanted one result of calibration_test, kccsd_test, kcsd_test, ksd_test, "
            "skce_test, moment_test or ucme_test"
        )
    lines = [f"{result.test}, n = {result.contributions.size}"]
    for place, (name, text) in enumerate(zip(STEPS, result.steps, strict=True), 1):
        lines.append(f"{place} {name:11} {text}")
    chosen = [f"{name} {float(value):.4g}" for name, value in result.bandwidths.items()]
    lines[5] += f"; by the median heuristic: {', '.join(chosen)}" if chosen else ""
    null = f"{result.null}, {result.null_samples.size} draws: p = {float(result.p_value):.4g}"
    lines += [f"  estimate    {float(result.estimate):.4g}", f"  null        {null}"]
    print("\n".join([*lines, *(f"  note        {text}" for text in result.warnings())]))


def steps(
    spec: Specification, fitted: Fitted, featured: Featured, predictions: Any, targets: Array
) -> tuple[str, ...]:
    """Return six texts, one on each of the `STEPS` of a fit, in their order."""
    classes, n = isinstance(predictions, Classes), targets.shape[0]
    d = targets.size // n
    nodes = fitted.frame.nodes if isinstance(fitted.frame, Frame) else None
    unit = "t = (y - mean) / sd of the targets" if spec.standardize else "the targets as they are"
    if spec.whiten is not None:
        unit += f", and M_i^-1 (t - c_i) of each prediction by {_named(spec.whiten)}"
    if nodes is None:
        base = "none needed"
    else:
        origin = "from N(0, I) in these units" if spec.base_measure is None else "of base_measure"
        origin = "of Scores" if isinstance(predictions, Scores) else origin
        base = f"z_1, .., z_{len(nodes)} {origin}, {list(nodes.shape)}"
    score = "none needed"
    if spec.residual.needs_scores:
        score = f"s_i = grad log p_i at the target, [{n}, {d}]"
        score += "" if nodes is None else f", and at the nodes, [{n}, {len(nodes)}, {d}]"
    compared = "predictions are not compared"
    if not isinstance(spec.prediction_kernel, Constant):
        shapes = {str(np.shape(leaf)) for leaf in jax.tree.leaves(featured.features.predictions)}
        compared = f"D(p, q): {_named(spec.divergence)}; arrays {', '.join(sorted(shapes))}"
    kernels = f"k = {_named(spec.prediction_kernel)}"
    if not isinstance(spec.residual, MomentResidual):
        kernels += f"; l = {_named(spec.target_kernel)}"
    unit = "classes have none" if classes else f"{unit}, [{n}, {d}]"
    return unit, base, score, compared, kernels, f"h_ij = k(D(p_i, p_j)) {_residual(spec)}"


def _residual(spec: Specification) -> str:
    """Return, as text, the factor of the statistic h_ij that depends on the targets."""
    match spec.residual:
        case SteinResidual():
            factor = "[l s_i's_j + s_i'grad_j l + s_j'grad_i l + tr grad_i grad_j' l]"
        case MeanResidual():
            factor = "[l(y_i, y_j) - E l(Z_i, y_j) - E l(y_i, Z_j) + E l(Z_i, Z_j)]"
        case MomentResidual(moment=moment):
            factor = f"m_i'm_j, m = {_named(moment)}"
        case _:
            factor = _named(spec.residual)
    drawn = spec.random_features
    return factor if drawn is None else f"{factor}, in {drawn.n_features} random features"


def _named(choice: Any) -> str:
    """Return, as text, the class of an option and the formula in its docstring."""
    match choice:
        case Sum(left=left, right=right):
            return f"{_named(left)} + {_named(right)}"
        case Product(left=left, right=right):
            return f"{_named(left)} times {_named(right)}"
        case Scaled(kernel=kernel):
            return f"a multiple of {_named(kernel)}"
    name, doc = type(choice).__name__, inspect.getdoc(type(choice)) or ""
    displayed, inline = r"\.\. math:: (.+)", r":math:`([^`]+)`|``([^`]*[\^(=][^`]*)``"
    formula = re.search(displayed, doc) or re.search(inline, doc)
    if formula is None:
        return name
    (text,) = filter(None, formula.groups())
    return f"{name} ({' '.join(text.split())})"
