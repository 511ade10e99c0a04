"""The demonstration runs from data to figure, says what it found, and learns what it claims to."""

import dataclasses
import io
from contextlib import redirect_stdout

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal.__main__ import main
from jaxcal.commands import demo
from jaxcal.commands.demo import (
    Energy,
    Regression,
    forecasts,
    score_matching_loss,
    seattle_weather,
    train,
)
from jaxcal.read.scores import score

create = eqx.filter_jit(Energy.create)


@pytest.fixture(scope="module")
def days():
    return forecasts(seattle_weather())


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The report, the results and the figure of a small run."""
    output, text = tmp_path_factory.mktemp("demo") / "figure.png", io.StringIO()
    with redirect_stdout(text):
        verdicts = demo.run(output, draws=50, rounds=3)
    return text.getvalue(), verdicts, output


def test_inputs_are_those_of_the_day_before(days):
    weather = seattle_weather()
    at = int(np.flatnonzero(weather["date"] == np.datetime64("2013-07-01"))[0])
    place = int(np.flatnonzero(days.dates == np.datetime64("2013-07-02"))[0])
    assert days.inputs[place, 0] == np.float32(weather["temp_max"][at])
    assert days.inputs[place, 2] == np.float32(weather["precipitation"][at] ** 0.5)
    assert days.targets[place, 1] == np.float32(weather["temp_min"][at + 1])
    assert days.inputs[place, 5] < -0.9, "the cosine of the time of year is lowest in July"


@pytest.mark.slow
def test_training_and_test_days_do_not_overlap(days, shown):
    text, verdicts, _ = shown
    assert text.isascii(), "any terminal shows it"
    assert "fitted on  2012-01-02 to 2014-12-31 (1095 days)" in text
    assert "tested on  2015-01-01 to 2015-12-31 (365 days)" in text
    assert verdicts[0].dependent.contributions.size == 365


@pytest.mark.slow
def test_the_report_holds_the_numbers_of_the_results(shown):
    text, verdicts, _ = shown
    assert [v.name for v in verdicts] == ["Gaussian regression", "Energy-based model"]
    for verdict in verdicts:
        section = text.split(f"\n{verdict.name}\n")[1]
        assert section.startswith(repr(verdict.dependent))
        assert (
            f"p-value {float(verdict.independent.p_value):.3f} with days as independent" in section
        )
        gaussian = verdict is verdicts[0]  # of these alone a temperature is named
        assert jaxcal.results.tells(verdict.dependent.coordinates.marginal_mean) == gaussian
    assert "Days are dependent" in text


@pytest.mark.slow
def test_both_nulls_share_the_estimate(shown):
    for verdict in shown[1]:
        independent, dependent = verdict.independent, verdict.dependent
        assert float(independent.estimate) == pytest.approx(float(dependent.estimate), rel=1e-5)
        assert (independent.null, dependent.null) == ("Wild", "DependentWild")
        assert dependent.estimate.dtype == np.float32


@pytest.mark.slow
def test_the_demonstration_ends_in_a_check(shown):
    text, verdicts, output = shown
    page = output.with_suffix(".html")
    assert f"as a page: {page}" in text
    written = page.read_text()
    assert "Check of the energy-based model" in written
    assert repr(verdicts[-1].dependent).split("\n")[0] in written
    assert written.count("data:image/png") == 1


@pytest.mark.slow
def test_the_figure_is_saved(shown):
    assert shown[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_score_matching_loss_is_its_formula(days):
    """For a Gaussian, s = -P (t - m): the loss is the mean of |s|^2 / 2 minus tr P."""
    xs, ts = jnp.asarray(days.inputs[:20]), jnp.asarray(days.targets[:20]) / 10
    energy = create(jax.random.key(0), xs, ts)
    root = jnp.array([[1.5, 0.0], [0.7, 0.8]], jnp.float32)
    energy = dataclasses.replace(energy, root=root)  # its network starts at 0
    precision = root @ root.T
    scores = (jax.vmap(energy.center)(xs) - ts) @ precision
    wanted = jnp.mean(jnp.sum(scores**2, axis=1)) / 2 - jnp.trace(precision)
    np.testing.assert_allclose(jax.jit(score_matching_loss)(energy, xs, ts), wanted, rtol=1e-5)


@pytest.mark.slow
def test_training_starts_at_the_regression_and_improves_on_it():
    """Targets of two modes: the regression cannot have them, the energy learns their scores."""
    x_key, side_key, noise_key, start_key, train_key = jax.random.split(jax.random.key(0), 5)
    xs = jax.random.normal(x_key, (1500, 1), jnp.float32)
    side = jax.random.rademacher(side_key, (1500, 1), jnp.float32)
    ys = xs + side + 0.5 * jax.random.normal(noise_key, (1500, 1), jnp.float32)
    start = create(start_key, xs, ys)
    gap = xs - ys  # two normals of standard deviation 1/2 around x + 1 and x - 1
    truth = 4 * gap + 4 * jnp.tanh(-4 * gap)

    def error(predictions):
        return float(jnp.mean((jax.jit(score)(predictions, ys) - truth) ** 2))

    regression = Regression.fit(xs, ys).predict(xs)
    assert error(start.predict(xs)) == pytest.approx(error(regression), rel=1e-3)
    parts = ((xs[:1000], ys[:1000]), (xs[1000:], ys[1000:]))
    trained = train(train_key, start, *parts, rounds=30, resolution=0.01, rate=3e-3)
    assert error(trained.predict(xs)) < error(regression) / 4


@pytest.mark.slow
def test_the_energy_is_a_log_density_that_jaxcal_takes(days):
    xs, ys = jnp.asarray(days.inputs[:50]), jnp.asarray(days.targets[:50])
    energy = create(jax.random.key(0), xs, ys)
    predictions = energy.predict(xs)
    assert isinstance(predictions, jaxcal.Unnormalized)
    got = jax.jit(score)(predictions, ys)
    wanted = jax.jit(jax.grad(Energy.__call__, argnums=2))(energy, xs[7], ys[7])
    np.testing.assert_allclose(got[7], wanted, rtol=1e-5)


def test_the_command_saves_where_it_is_told(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(demo, "run", lambda output, **options: seen.append((output, options)) or [])
    assert main(["demo", "--output", str(tmp_path / "a.png"), "--seed", "4", "--rounds", "2"]) == 0
    assert seen == [(tmp_path / "a.png", {"seed": 4, "draws": 500, "rounds": 2})]
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--output", str(tmp_path / "no" / "a.png")])
    assert stop.value.code == 2
    assert "does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--output", str(tmp_path / "a.foo")])
    assert stop.value.code == 2
    assert "a.foo is no figure that can be drawn" in capsys.readouterr().err
    assert len(seen) == 1, "nothing ran"


def test_a_figure_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, capsys):
    def full(output, **options):
        raise OSError(28, "No space left on device", str(output))

    monkeypatch.setattr(demo, "run", full)
    assert main(["demo", "--output", str(tmp_path / "a.png")]) == 2
    assert capsys.readouterr().err == f"jaxcal: {tmp_path / 'a.png'}: No space left on device\n"
