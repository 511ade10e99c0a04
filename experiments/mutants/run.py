"""Small breaks of the library, one at a time, and whether the quick tests notice each.

python experiments/mutants/run.py [--quick] [--output FILE] writes results.csv. Each break is made
in a copy of the checkout, and the tests named beside it run until the first that fails.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
CHECKOUT = FOLDER.parents[1]


class Mutant(NamedTuple):
    """``line`` of jaxcal/``file``, which occurs once, becomes ``broken``; ``tests`` should fail."""

    name: str
    file: str
    line: str
    broken: str
    tests: str


MUTANTS = [
    Mutant(
        "the diagonal is left in",
        "engine/quadratic.py",
        "    h = jnp.where((side[: h.shape[-2], None] + offset == side[None])[None], 0, h)\n",
        "",
        "unit/engine/test_quadratic.py",
    ),
    Mutant(
        "tiles above the diagonal count once",
        "engine/quadratic.py",
        "np.where(i == j, 1, 2)",
        "np.where(i == j, 1, 1)",
        "unit/engine/test_quadratic.py",
    ),
    Mutant(
        "sums below the diagonal are lost",
        "engine/quadratic.py",
        "part.col_sums * upper",
        "part.row_sums * upper",
        "unit/engine/test_quadratic.py",
    ),
    Mutant(
        "a block is one observation short",
        "engine/quadratic.py",
        "    m = n // size\n",
        "    m = (n - 1) // size\n",
        "unit/engine/test_quadratic.py",
    ),
    Mutant(
        "draws equal to the statistic do not count",
        "nulls/contract.py",
        "samples >= least[:, None]",
        "samples > least[:, None]",
        "unit/nulls/test_nulls.py",
    ),
    Mutant(
        "a p-value of 0",
        "nulls/contract.py",
        "p = (1 + exceeding).astype",
        "p = exceeding.astype",
        "unit/nulls/test_nulls.py",
    ),
    Mutant(
        "NaN becomes a verdict",
        "nulls/contract.py",
        "return jnp.where(good, p, jnp.nan)",
        "return p",
        "unit/nulls/test_nulls.py",
    ),
    Mutant(
        "stretches of a series are half as long",
        "nulls/resampling.py",
        "return 0.5 / at_least(2 * block, 1.0)",
        "return 0.5 / at_least(block, 1.0)",
        "unit/nulls/test_nulls.py",
    ),
    Mutant(
        "a sum counts less on the side of its skewness",
        "nulls/contract.py",
        "against = jnp.maximum(-jnp.mean(relative**3, axis=1), 0)",
        "against = jnp.maximum(jnp.mean(relative**3, axis=1), 0)",
        "unit/nulls/test_nulls.py",
    ),
    Mutant(
        "the standard error is half",
        "nulls/contract.py",
        "return 2 * jnp.std(self.contributions",
        "return jnp.std(self.contributions",
        "unit/stein/test_calibration.py",
    ),
    Mutant(
        "the Stein kernel's second derivative has the wrong sign",
        "statistics/stein.py",
        "2 * first * (cross - d) - 4 * r2 * second",
        "2 * first * (cross - d) + 4 * r2 * second",
        "unit/statistics/test_stein.py",
    ),
    Mutant(
        "the Stein kernel's trace lacks d",
        "statistics/stein.py",
        "2 * first * (cross - d) - 4",
        "2 * first * (cross - 1) - 4",
        "unit/statistics/test_stein.py",
    ),
    Mutant(
        "components swap their directions",
        "statistics/stein.py",
        "(s_b * along_a - s_a * along_b",
        "(s_a * along_a - s_b * along_b",
        "unit/statistics/test_stein.py",
    ),
    Mutant(
        "the bandwidth is not squared",
        "kernels/algebra.py",
        "lambda r2: kernel.shape(r2 / of_type(length, r2) ** 2)",
        "lambda r2: kernel.shape(r2 / of_type(length, r2))",
        "unit/kernels/test_points.py",
    ),
    Mutant(
        "squared distances lack the factor 2",
        "kernels/points.py",
        "- 2 * (xs @ ys.T), 0)",
        "- (xs @ ys.T), 0)",
        "unit/kernels/test_points.py",
    ),
    Mutant(
        "SKCE adds an expectation once too often",
        "statistics/skce.py",
        "(at_targets + means.own(",
        "(at_targets + 2 * means.own(",
        "unit/skce/test_skce.py",
    ),
    Mutant(
        "SKCE's cross term is not transposed",
        "statistics/skce.py",
        "means.first(cols.distribution, rows.ys).T",
        "means.first(rows.distribution, cols.ys)",
        "unit/skce/test_skce.py",
    ),
    Mutant(
        "Hotelling's covariance divides by n",
        "ucme.py",
        "eigh(scaled.T @ scaled / (n - 1))",
        "eigh(scaled.T @ scaled / n)",
        "unit/test_ucme.py",
    ),
    Mutant(
        "the Laplace error counts each observation twice",
        "dce/smooth.py",
        "h = left + right - rho",
        "h = left + right",
        "unit/dce/test_measures.py",
    ),
    Mutant(
        "the unbiased square keeps its diagonal",
        "dce/smooth.py",
        "(squared - jnp.sum(rho**2)) /",
        "squared /",
        "unit/dce/test_measures.py",
    ),
    Mutant(
        "the pinball loss has its levels swapped",
        "measures/quantiles.py",
        "jnp.where(gap < 0, (at - 1)[None] * gap, at[None] * gap)",
        "jnp.where(gap < 0, -at[None] * gap, (1 - at)[None] * gap)",
        "unit/measures/test_quantiles.py",
    ),
    Mutant(
        "R-hat takes the variance of all draws for that within",
        "mcmc/results.py",
        "within = jnp.mean(jnp.var(z, axis=0, ddof=1), axis=0)",
        "within = jnp.mean(jnp.var(z, axis=0), axis=0)",
        "unit/mcmc/test_mcmc.py",
    ),
    Mutant(
        "the one-step estimate lacks the factor 2",
        "squared_ce/leave_one_out.py",
        "jnp.sum(2 * residuals * estimated",
        "jnp.sum(residuals * estimated",
        "unit/squared_ce/test_squared_ce_pipeline.py",
    ),
    Mutant(
        "the paired test looks at the other tail",
        "squared_ce/leave_one_out.py",
        "ndtr(z), interval)",
        "ndtr(-z), interval)",
        "unit/squared_ce/test_squared_ce_pipeline.py",
    ),
    Mutant(
        "the ridge shrinks as the square root of n",
        "ckce/inputs.py",
        "float(n) ** -0.25",
        "float(n) ** -0.5",
        "unit/ckce/test_estimator.py",
    ),
    Mutant(
        "the kernel on predictions weighs the first channel alone",
        "statistics/weighted.py",
        "return k[None] * self.statistic.block(rows.residual, cols.residual)",
        "return self.statistic.block(rows.residual, cols.residual).at[0].multiply(k)",
        "unit/statistics/test_weighted.py",
    ),
    Mutant(
        "exchangeable points forget where they were drawn",
        "moments/balance.py",
        "jax.nn.softmax(logs - proposal)",
        "jax.nn.softmax(logs)",
        "unit/moments/test_moments.py",
    ),
    Mutant(
        "the target is no member of its set",
        "moments/balance.py",
        "jnp.concatenate([y[None], drawn])",
        "jnp.concatenate([drawn[:1], drawn])",
        "unit/moments/test_moments.py",
    ),
    Mutant(
        "sums of vectors keep the pairs with oneself",
        "engine/linear.py",
        " - diagonal @ columns**2",
        "",
        "unit/engine/test_linear.py",
    ),
    Mutant(
        "padding counts",
        "engine/linear.py",
        "z = pairwise.vectors(features) * columns[None, None, :, 0]",
        "z = pairwise.vectors(features)",
        "unit/engine/test_linear.py",
    ),
    Mutant(
        "a merged state has the sums of one alone",
        "streaming/state.py",
        "self.sums.get(name, 0) + other.sums.get(name, 0)",
        "other.sums.get(name, 0)",
        "unit/streaming/test_streaming.py",
    ),
    Mutant(
        "the streamed estimate keeps its diagonal",
        "streaming/linear.py",
        "(n * square - trace / n) / (n - 1)",
        "n * square / (n - 1)",
        "unit/streaming/test_streaming.py",
    ),
    Mutant(
        "differences have the deviation of the common value alone",
        "ckce/errors.py",
        "direct, claimed = _between(firsts), slope * common",
        "direct, claimed = 0 * second, slope * common",
        "unit/ckce/test_probability.py",
    ),
    Mutant(
        "redrawn residuals are too small",
        "ckce/errors.py",
        "return jax.nn.one_hot(labels, q.shape[1], dtype=q.dtype) - q",
        "return 0.7 * (jax.nn.one_hot(labels, q.shape[1], dtype=q.dtype) - q)",
        "unit/ckce/test_compare.py",
    ),
    Mutant(
        "a row helps to fit its own residual",
        "squared_ce/leave_one_out.py",
        "(fit - leverage * residuals) / others",
        "fit / others",
        "unit/squared_ce/test_squared_ce_leave_one_out.py",
    ),
    Mutant(
        "the noise of the left-out estimate is half",
        "squared_ce/leave_one_out.py",
        "noise=float(2 * pairs",
        "noise=float(pairs",
        "unit/squared_ce/test_squared_ce_leave_one_out.py",
    ),
    Mutant(
        "where targets stand looks at the target",
        "entries/landed.py",
        "points = _mixed(chance, three)",
        "points = _mixed(chance, three) + ys[:, None]",
        "unit/entries/test_entries.py",
    ),
    Mutant(
        "densities at targets after a change of units",
        "entries/ranks.py",
        "landed(keys[0], predictions, ys, targets)",
        "landed(keys[0], predictions, ys, predictions.units.original(ys).reshape(targets.shape))",
        "unit/entries/test_entries.py",
    ),
    Mutant(
        "what fills a block of entries is evidence",
        "entries/evidence.py",
        "(log_dets[0] - log_dets[1] + filling)[:, None]",
        "(log_dets[0] - log_dets[1])[:, None]",
        "unit/entries/test_entries.py",
    ),
    Mutant(
        "a block of observations begins one late",
        "entries/ranks.py",
        "leaf[-1, BLOCK * count - n :]",
        "leaf[-1, BLOCK * count - n + 1 :]",
        "unit/entries/test_entries.py",
    ),
    Mutant(
        "slopes of the table with the other sign",
        "entries/table.py",
        "return -slope, error",
        "return slope, error",
        "unit/entries/test_entries.py",
    ),
    Mutant(
        "an entry is learned from itself too",
        "entries/evidence.py",
        "jax.lax.map(sums, jnp.arange(PARTS - 1))",
        "jax.lax.map(sums, jnp.arange(1, PARTS))",
        "unit/entries/test_entries.py",
    ),
]


def measure(mutant: Mutant) -> dict[str, float]:
    """1 where the quick tests killed the mutant, else 0; processor seconds until they did."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("jaxcal", "tests", "experiments/reference"):
            shutil.copytree(CHECKOUT / part, Path(folder, part))
        shutil.copy(CHECKOUT / "pyproject.toml", folder)
        source = Path(folder, "jaxcal", mutant.file)
        text = source.read_text()
        if text.count(mutant.line) != 1:
            raise ValueError(f"{mutant.file}: wanted one place to break: {mutant.line!r}")
        source.write_text(text.replace(mutant.line, mutant.broken))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", f"tests/{mutant.tests}"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": folder},
            capture_output=True,
            text=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1) or not re.search(r"\d+ (passed|failed)", done.stdout):
        raise RuntimeError(f"{mutant.name}: the tests did not run\n{done.stdout}{done.stderr}")
    seconds = sum(after[:2]) - sum(before[:2])
    return {"killed": done.returncode, "processor_seconds": round(seconds)}


def make(mutants: Sequence[Mutant]) -> runner.Study:
    """Whether the quick tests notice small breaks of the library."""
    by_name = {mutant.name: mutant for mutant in mutants}
    cells = [{"mutant": m.name, "file": m.file, "tests": m.tests} for m in mutants]
    columns = ("killed", "processor_seconds")
    return runner.Study(cells, columns, lambda cell, _: measure(by_name[cell["mutant"]]), seed=0)


def main(arguments: Sequence[str] | None = None) -> Path:
    """From the command line."""
    return runner.command_line(make, MUTANTS, MUTANTS[:1], FOLDER, arguments)


if __name__ == "__main__":
    main()
