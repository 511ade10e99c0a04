"""The studies: the runner resumes without losing or repeating a cell, and every study runs."""

import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from optional import with_packages
from scripts import smoke

from jaxcal import kccsd
from jaxcal.engine.quadratic import quadratic_sums
from jaxcal.skce import skce

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
STUDIES = ["kccsd", "kccsd_mcmc", "level", "preconditioning", "precision"]
COMMITTED = [
    *STUDIES,
    "acmmd",
    "attribution",
    "check",
    "distance",
    "field",
    "monitor",
    "peers",
    "smallest_shift",
    "skce_friedman",
    "skce_gaussians",
    "skce_ols",
]


def load(path):
    spec = importlib.util.spec_from_file_location("_".join(path.with_suffix("").parts[-3:]), path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


runner = load(EXPERIMENTS / "runner.py")


def test_every_mutant_breaks_one_place_of_the_library():
    checkout, mutants = EXPERIMENTS.parent, load(EXPERIMENTS / "mutants" / "run.py").MUTANTS
    for mutant in mutants:
        text = (checkout / "jaxcal" / mutant.file).read_text()
        assert (text.count(mutant.line), mutant.name) == (1, mutant.name)
        assert (checkout / "tests" / mutant.tests).exists()
        assert mutant.broken != mutant.line
    assert len({mutant.name for mutant in mutants}) == len(mutants)


class Interrupted(Exception):
    pass


def study(*, stop_after=None, reverse=False, measured=("draw", "count"), paired=()):
    """Six cells that draw one number each; raises after ``stop_after`` of them."""
    calls = []

    def measure(cell, key):
        if len(calls) == stop_after:
            raise Interrupted
        calls.append(dict(cell))
        return dict.fromkeys(measured, float(jax.random.normal(key))) | {"count": cell["n"]}

    cells = [{"null": null, "n": n} for null in ("a", "b,c") for n in (8, 16, 32)]
    planned = runner.Study(cells[::-1] if reverse else cells, measured, measure, 1, paired)
    return planned, calls


def whole(path):
    runner.run(study()[0], path, progress=False)
    return path.read_text()


@pytest.mark.parametrize("k", [0, 1, 5])
def test_an_interrupted_study_continues_where_it_stopped(tmp_path, k):
    path = tmp_path / "new" / "results.csv"
    first, done = study(stop_after=k)
    with pytest.raises(Interrupted):
        runner.run(first, path, progress=False)
    second, rest = study()
    runner.run(second, path, progress=False)
    assert done + rest == list(second.cells)
    assert path.read_text() == whole(tmp_path / "whole.csv")
    third, nothing = study()
    runner.run(third, path, progress=False)
    assert nothing == []


@pytest.mark.parametrize(
    "left",
    [
        '"b,c",32,1.2',  # a number cut off
        '"b,c",32,1.25,3',  # the whole row, its line's end missing
        '"b,c',
        '"b,c",32,1.2\n',  # a column missing
        '"b,c",32,1.2x,32\n',
        "\x00\x00\x00",
    ],
)
def test_a_corrupt_last_line_is_named_and_measured_again(tmp_path, left):
    path, text = tmp_path / "results.csv", whole(tmp_path / "whole.csv")
    path.write_text("".join(text.splitlines(keepends=True)[:-1]) + left)
    again, calls = study()
    with pytest.warns(UserWarning, match=r"results\.csv: the last line .* is incomplete"):
        runner.run(again, path, progress=False)
    assert calls == [{"null": "b,c", "n": 32}]
    assert path.read_text() == text


@pytest.mark.parametrize("left", ["", "null,n,dr"])
def test_a_header_that_was_cut_off_starts_the_file_again(tmp_path, left):
    path, text = tmp_path / "results.csv", whole(tmp_path / "whole.csv")
    path.write_text(left)
    with pytest.warns(UserWarning, match="incomplete"):
        runner.run(study()[0], path, progress=False)
    assert path.read_text() == text


def test_a_file_of_another_study_is_refused_and_kept(tmp_path):
    path = tmp_path / "results.csv"
    text = whole(path)
    with pytest.raises(ValueError, match=r"results\.csv has columns .*'draw', 'count'"):
        runner.run(study(measured=("other", "count"))[0], path, progress=False)
    lines = text.splitlines(keepends=True)
    for wrong, message in [
        (["c,8,1,8\n"], "line 8: a cell that this study does not have"),
        ([lines[1]], "line 8: the cell .* for the second time"),
        (["half\n", "a,8,1,8\n"], "line 8: not a row of this study"),
    ]:
        path.write_text("".join(lines + wrong))
        with pytest.raises(ValueError, match=message):
            runner.run(study()[0], path, progress=False)
        assert path.read_text() == "".join(lines + wrong)


def test_seeds_depend_on_the_cell_and_not_on_the_order(tmp_path):
    whole(tmp_path / "forward.csv")
    runner.run(study(reverse=True)[0], tmp_path / "backward.csv", progress=False)
    forward, backward = (
        {tuple(row.values()) for row in runner.read(tmp_path / f"{name}.csv")}
        for name in ("forward", "backward")
    )
    assert forward == backward
    assert len({row[2] for row in forward}) == 6  # all draws differ


def test_paired_cells_see_the_same_data():
    values, _ = study(paired=("null",))
    keys = jax.random.key_data(jax.numpy.stack([values.key(cell) for cell in values.cells]))
    assert (keys[:3] == keys[3:]).all()
    assert len({tuple(key.tolist()) for key in keys[:3]}) == 3


def test_a_study_needs_different_cells_of_the_same_names():
    def make(cells):
        return runner.Study(cells, ("x",), lambda cell, key: {"x": 0}, 1)

    with pytest.raises(ValueError, match="at least one cell"):
        make([])
    with pytest.raises(ValueError, match="two cells of the study are the same"):
        make([{"n": 1}, {"n": 1}])
    with pytest.raises(ValueError, match="same names"):
        make([{"n": 1}, {"m": 2}])


def packages(script):
    return ["sklearn"] if "\nfrom sklearn" in script.read_text() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    with_packages(sorted(EXPERIMENTS.glob("*/run.py")), packages),
    ids=lambda path: path.parent.name,
)
def test_every_study_runs_at_smoke_size(tmp_path, script):
    """As its README runs it, and drawn where its figure can be of a part of the study."""
    path = tmp_path / "results.csv"
    resumes = '"--output"' in script.read_text() or "command_line" in script.read_text()
    said = tmp_path / "said.txt"
    smoke(script, "--quick", *(["--output", path] if resumes else []), output=said)
    if script.parent.name in STUDIES:
        assert all(int(row["not_a_number"]) == 0 for row in runner.read(path))
        smoke(script.with_name("plot.py"), path, output=said)
        assert all(figure.stat().st_size > 5000 for figure in drawn(tmp_path))


@pytest.mark.optional("torch", "sbi", "sklearn")
@pytest.mark.slow
def test_trained_posteriors_are_recalibrated_at_smoke_size(tmp_path):
    path = tmp_path / "results.csv"
    script = EXPERIMENTS / "repair" / "trained.py"
    smoke(script, "--quick", "--output", path, output=tmp_path / "said.txt")
    rows = {row["recalibration"]: row for row in runner.read(path)}
    # a repair whose density had lost its constant would gain by whole nats, or lose
    gain, low, high = (float(rows["repair"][name]) for name in ("gain", "low", "high"))
    error = (high - low) / 4 + float(rows["repair"]["gain_error"])
    assert abs(gain - float(rows["repair"]["certified"])) < 5 * error
    assert all(0 <= float(row["covered_90"]) <= 1 for row in rows.values())


def drawn(folder):
    figures = list(folder.glob("*.png"))
    assert figures
    return figures


@pytest.mark.parametrize("name", COMMITTED)
def test_the_committed_results_are_those_of_the_study(name):
    module = load(EXPERIMENTS / name / "run.py")
    result = module.make(module.Config())
    rows = runner.read(EXPERIMENTS / name / "results.csv")
    assert {runner.identity({c: row[c] for c in result.names}) for row in rows} == {
        runner.identity(cell) for cell in result.cells
    }


@pytest.mark.slow
def test_the_grid_of_the_paper_has_the_tests_of_the_library():
    """One walk for all series gives what a call for each of them gives."""
    load(EXPERIMENTS / "kccsd" / "run.py")
    import kccsd_grid as grid
    import kccsd_models as models

    mean, variance, targets = models.hgm(jax.random.key(3), 40)
    predictions = dist.Normal(mean, jnp.sqrt(variance)).to_event(1)
    result, features = grid.assemble(jax.random.key(4), predictions, targets)
    values = quadratic_sums(result, features, jnp.zeros((40, 0)), tile=16).total / (40 * 39)
    by_series = dict(zip(grid.series(), values, strict=True))
    assert len(by_series) == 25
    for one, value in by_series.items():
        if one.divergence not in ("GFD", "MMD") or one.exactness == "approx":
            continue  # the approximate ones have draws of their own
        estimate = {"KCCSD": kccsd, "SKCE": skce}[one.test]
        options = {
            "divergence": grid.DIVERGENCES[one.divergence, "exact"],
            "target_kernel": grid.TARGETS[one.target],
            "standardize": False,
        }
        alone = estimate(jax.random.key(5), predictions, targets, **options).unbiased
        np.testing.assert_allclose(value, alone, rtol=1e-9, atol=1e-12)
