"""Run the demonstration, from data to report.

Two forecasters of tomorrow's temperatures in Seattle, a Gaussian by least squares and an
unnormalized density by score matching, are fitted on the first three years of data and tested on
the fourth."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Shaped

from jaxcal import plots
from jaxcal.checking.check import CheckReport
from jaxcal.checking.plan import SCORES
from jaxcal.nulls import DependentWild, Wild
from jaxcal.read import Units, Unnormalized, convert
from jaxcal.results import TestResult
from jaxcal.stein.calibration import kccsd_test
from jaxcal.typing import Distribution, Key, Point, Points, Scalar

RESOLUTION = 5 / 9  # degrees Celsius: most temperatures are whole degrees Fahrenheit
TARGETS = ("highest", "lowest")
OPENING = """\
Can the uncertainty of these weather forecasts be trusted?

  place      Seattle, daily, 2012 to 2015 (NOAA, public domain)
  input      today's highest and lowest temperature, precipitation, wind, time of year
  target     tomorrow's highest and lowest temperature, in degrees Celsius
  fitted on  {} to {} ({} days)
  tested on  {} to {} ({} days), never seen before
"""
READING = """
How to read this
  Days are dependent: the error of one day often repeats on the next. The dependent wild bootstrap
  estimates from the scores for how long, and allows for it: use its p-value.
  Shifts are told of Gaussian forecasts only. The two estimates rest on different distances: they do
  not rank the models.
  Not rejected is no proof: an error smaller than these days can show may be there.
  Rejected: look in the figure where days contribute most, repair the model, and test it on new
  days."""


def seattle_weather() -> np.ndarray:
    """Return the daily weather of Seattle from 2012 to 2015, from a file in jaxcal.

    The structured array [1461] has fields ``date``, ``precipitation`` in mm, ``temp_max`` and
    ``temp_min`` in degrees Celsius, and ``wind``, the mean speed of the day, in m/s."""
    table = resources.files("jaxcal") / "data" / "seattle_weather.csv"
    return np.genfromtxt(
        table.read_text(encoding="utf-8").splitlines(),
        ["datetime64[D]", *["float64"] * 4],
        delimiter=",",
        names=True,
        usecols=range(5),
        converters={"date": lambda date: date.replace("/", "-")},
    )


class Days(NamedTuple):
    """Inputs and targets of n forecasts, in temporal order.

    ``dates`` [n]: the day that is forecast. ``inputs`` [n, 6]: weather of the day before (highest
    and lowest temperature, square root of the precipitation, wind, sine and cosine of the time of
    year). ``targets`` [n, 2]: highest and lowest temperature of the day, in degrees Celsius.
    """

    dates: Shaped[np.ndarray, " n"]
    inputs: Float32[np.ndarray, "n q"]
    targets: Float32[np.ndarray, "n 2"]

    def within(self, first: str, last: str) -> "Days":
        """Return the rows with ``first`` <= date <= ``last``, two ISO dates."""
        kept = (self.dates >= np.datetime64(first)) & (self.dates <= np.datetime64(last))
        return Days(*(column[kept] for column in self))


def forecasts(weather: np.ndarray) -> Days:
    """Return the `Days` of n - 1 forecasts, of each day but the first, from the previous day."""
    dates, highest, lowest = (weather[name] for name in ("date", "temp_max", "temp_min"))
    angle = 2 * np.pi * (dates - dates.astype("datetime64[Y]")).astype(int) / 365.25
    rain = np.sqrt(weather["precipitation"])  # most days are dry, few are very wet
    columns = [highest, lowest, rain, weather["wind"], np.sin(angle), np.cos(angle)]
    inputs = np.stack(columns, axis=1).astype(np.float32)
    targets = np.stack([highest, lowest], axis=1).astype(np.float32)
    return Days(dates[1:], inputs[:-1], targets[1:])


class Regression(NamedTuple):
    """Linear model ``y = intercept + slope x + noise`` with constant noise ``covariance``."""

    slope: Float[Array, "d q"]
    intercept: Point
    covariance: Float[Array, "d d"]

    @classmethod
    def fit(cls, inputs: Float[Array, "n q"], targets: Points) -> "Regression":
        """Return the least-squares fit, with the covariance of the residuals."""
        n, q = inputs.shape
        x_mean, y_mean = jnp.mean(inputs, axis=0), jnp.mean(targets, axis=0)
        xs, ys = inputs - x_mean[None], targets - y_mean[None]
        slope = jnp.linalg.lstsq(xs, ys)[0].T
        residuals = ys - xs @ slope.T
        return cls(slope, y_mean - slope @ x_mean, residuals.T @ residuals / (n - q - 1))

    def predict(self, inputs: Float[Array, "n q"]) -> Distribution:
        """Return a numpyro distribution with batch shape [n]: a Gaussian per row of ``inputs``."""
        from numpyro.distributions import MultivariateNormal  # numpyro only where it is used

        return MultivariateNormal(
            inputs @ self.slope.T + self.intercept[None], covariance_matrix=self.covariance
        )


class Layer(NamedTuple):
    """Layer of a network: the map from x to ``weight x + bias``."""

    weight: Float[Array, "after before"]
    bias: Float[Array, " after"]

    def __call__(self, x: Float[Array, " before"]) -> Float[Array, " after"]:
        return self.weight @ x + self.bias


class Energy(eqx.Module):
    r"""A density known up to its constant, ``log f(y | x) = -E(x, y)``.

    .. math:: E(x, y) = \tfrac12 \|u\|^2 - g(x, u), \qquad u = L^\top (t - A x - b)

    Here t is the standardized target y, and x is standardized. A, b (``center``) and L (``root``)
    start as a Gaussian regression; g, a tanh network (``layers``), starts at 0. As g is bounded, f
    can be integrated; its integral has no formula and is never needed.
    """

    layers: tuple[Layer, ...]
    center: Layer
    root: Float[Array, "d d"]
    input_units: Units
    target_units: Units

    @classmethod
    def create(cls, key: Key, inputs: Float[Array, "n q"], targets: Points) -> "Energy":
        """Return the untrained energy, equal to a Gaussian regression; two hidden layers of 32."""
        input_units, target_units = Units.of(inputs), Units.of(targets)
        linear = Regression.fit(input_units.points(inputs), target_units.points(targets))
        q, d = inputs.shape[1], targets.shape[1]
        first, second = jax.random.normal(key, (2, 32, 32), targets.dtype)  # one draw compiles fast
        zeros = jnp.zeros(32, targets.dtype)
        layers = (
            Layer(first[:, : q + d] / (q + d) ** 0.5, zeros),
            Layer(second / 32**0.5, zeros),
            Layer(zeros[None], zeros[:1]),
        )
        return cls(
            layers,
            Layer(linear.slope, linear.intercept),
            jnp.linalg.cholesky(jnp.linalg.inv(linear.covariance)),
            input_units,
            target_units,
        )

    def __call__(self, x: Float[Array, " q"], y: Point) -> Scalar:
        """Return ``-E(x, y)`` for one input x and target y in the units of the data."""
        return self.standard(self.input_units.points(x), self.target_units.points(y))

    def standard(self, x: Float[Array, " q"], t: Point) -> Scalar:
        """Return ``-E``, for input x and target t in standard units."""
        first, second, last = self.layers
        u = jnp.tril(self.root).T @ (t - self.center(x))
        hidden = jnp.tanh(second(jnp.tanh(first(jnp.concatenate([x, u])))))
        return last(hidden)[0] - jnp.sum(u**2) / 2

    def predict(self, inputs: Float[Array, "n q"]) -> Unnormalized:
        """Return n unnormalized densities, one per row of ``inputs``; all share the network."""
        return Unnormalized(log_density, (self, inputs), in_axes=(None, 0))


def log_density(params: tuple[Energy, Float[Array, " q"]], y: Point) -> Scalar:
    """Return ``-E(x, y)``, for ``params`` = (energy, x) of one prediction and one target y."""
    energy, x = params
    return energy(x, y)


def score_matching_loss(energy: Energy, xs: Float[Array, "n q"], ts: Points) -> Scalar:
    r"""Return the mean of :math:`\tfrac12 \|s(t)\|^2 + \mathrm{tr}\,\nabla s(t)`, with score s.

    The expectation of this loss is smallest for the density of the data; normalizing constants do
    not matter. Inputs xs and targets ts are in standard units. The trace is exact, from products of
    the Hessian with d unit vectors.
    Source: Hyvarinen (2005), eq. 4, given an input.
    """

    def of_one_day(x: Float[Array, " q"], t: Point) -> Scalar:
        score, slope = jax.linearize(jax.grad(energy.standard, argnums=1), x, t)
        basis = jnp.eye(t.size, dtype=t.dtype)
        trace = jnp.trace(jax.vmap(lambda along: slope(jnp.zeros_like(x), along))(basis))
        return jnp.sum(score**2) / 2 + trace

    return jnp.mean(jax.vmap(of_one_day)(xs, ts))


@eqx.filter_jit
def train(
    key: Key,
    energy: Energy,
    training: tuple[Array, Array],
    validation: tuple[Array, Array],
    *,
    rounds: int,
    resolution: float,
    steps: int = 20,
    rate: float = 3e-4,
) -> Energy:
    """Train by Adam on all training days at once, for ``rounds`` rounds of ``steps`` steps each.

    ``training`` and ``validation`` are (inputs, targets) in the units of the data. The parameters
    with the smallest validation loss after a round are kept, to avoid overfitting. ``rate`` is the
    learning rate. Targets were recorded in multiples of ``resolution``; each step adds new uniform
    noise of that width, since spikes at recorded values could lower the loss without bound.
    """
    import optax  # only where it is used

    def standard(days: tuple[Array, Array]) -> tuple[Array, Array]:
        return energy.input_units.points(days[0]), energy.target_units.points(days[1])

    def spread(key: Key, days: tuple[Array, Array]) -> tuple[Array, Array]:
        noise = jax.random.uniform(key, days[1].shape, days[1].dtype, -0.5, 0.5)
        return days[0], days[1] + noise * resolution / energy.target_units.scale[None]

    def loss(learned, days: tuple[Array, Array]) -> Scalar:
        return score_matching_loss(_with(energy, learned), *days)

    training_key, validation_key = jax.random.split(key)
    train_days, held_out = standard(training), spread(validation_key, standard(validation))
    optimizer = optax.adam(rate)

    def step(state, key: Key):
        learned, memory = state
        gradient = jax.grad(loss)(learned, spread(key, train_days))
        updates, memory = optimizer.update(gradient, memory)
        return (optax.apply_updates(learned, updates), memory), None

    def a_round(state, key: Key):
        current, best, best_loss = state
        current, _ = jax.lax.scan(step, current, jax.random.split(key, steps))
        value = loss(current[0], held_out)
        better = value < best_loss
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), current[0], best)
        return (current, best, jnp.minimum(value, best_loss)), None

    learned = (energy.layers, energy.center, energy.root)
    state = ((learned, optimizer.init(learned)), learned, jnp.asarray(jnp.inf, energy.root.dtype))
    (_, best, _), _ = jax.lax.scan(a_round, state, jax.random.split(training_key, rounds))
    return _with(energy, best)


def _with(energy: Energy, learned: tuple) -> Energy:
    layers, center, root = learned
    return Energy(layers, center, root, energy.input_units, energy.target_units)


class Verdict(NamedTuple):
    """Results of `kccsd_test` for one forecaster, with nulls for independent and dependent days."""

    name: str
    independent: TestResult
    dependent: TestResult


def run(output: Path, *, seed: int = 0, draws: int = 500, rounds: int = 30) -> list[Verdict]:
    """Fit and test two forecasters, print a report, and return a `Verdict` for each.

    Saves a figure as ``output``, and a report on the second forecaster as a page with suffix .html.
    ``draws``: number of draws of each null. ``rounds``: rounds of training. Computes in float32;
    reproducible for a given seed. OSError if the figure cannot be written."""
    started = time.perf_counter()
    days = forecasts(seattle_weather())
    fitted = days.within("2012-01-02", "2014-12-31")
    tested = days.within("2015-01-01", "2015-12-31")
    spans = [part for days in (fitted, tested) for part in (*days.dates[[0, -1]], days.dates.size)]
    print(OPENING.format(*spans), flush=True)

    train_key, start_key, test_key = jax.random.split(convert.key(seed), 3)
    with _stage("fit the Gaussian regression (least squares)"):
        regression = jax.jit(Regression.fit)(fitted.inputs, fitted.targets)
        gaussians = regression.predict(jnp.asarray(tested.inputs))
    with _stage("train the energy-based model (score matching)"):
        energy = _trained(start_key, train_key, fitted, rounds)
        densities = energy.predict(jnp.asarray(tested.inputs))

    verdicts = []
    forecasters = {"Gaussian regression": gaussians, "Energy-based model": densities}
    for name, predictions in forecasters.items():
        with _stage(f"test: {name}"):
            options: Any = {"null": DependentWild(draws), "coordinates": True}
            independent = kccsd_test(test_key, predictions, tested.targets, null=Wild(draws))
            dependent = kccsd_test(test_key, predictions, tested.targets, **options)
            verdicts.append(Verdict(name, *jax.block_until_ready((independent, dependent))))

    for name, independent, dependent in verdicts:
        print(f"\n{name}\n{dependent!r}")
        print(f"  p-value {float(independent.p_value):.3f} with days as independent")
    print(READING)
    draw([(v.name, v.dependent) for v in verdicts], tested.dates, output)
    page = output.with_suffix(".html")
    check_of(verdicts[-1], tested).to_html(page)
    print(f"\nCheck of the energy-based model, as a page: {page}")
    print(f"Figure: {output}   ({time.perf_counter() - started:.0f} s in all)")
    return verdicts


def draw(
    results: Sequence[tuple[str, TestResult]], dates: Shaped[np.ndarray, " n"], output: Path
) -> None:
    """Save a figure with a row per result: histogram of the null, daily contributions, shifts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.9 * len(results)), layout="constrained")
    rows = figure.subfigures(len(results), 1, squeeze=False, hspace=0.06)
    for (row,), (name, result) in zip(rows, results, strict=True):
        row.suptitle(name, fontweight="bold", x=0.01, ha="left")
        null, days, coordinates = row.subplots(1, 3, width_ratios=(1, 1.25, 0.9))
        plots.null_histogram(result, ax=null)
        plots.contributions(result, dates, label="day of the forecast", ax=days)
        plots.coordinates(result, TARGETS, ax=coordinates)
    figure.savefig(output, dpi=120)


def check_of(verdict: Verdict, tested: Days) -> CheckReport:
    """Return a check report that holds one forecaster's test for dependent days."""
    return CheckReport.of(
        kind=f"the {verdict.name[0].lower()}{verdict.name[1:]}",
        why="its densities are known up to their constants, and kccsd_test needs no more; days "
        "follow each other, which the dependent wild bootstrap allows for",
        names=(SCORES.name,),
        tests=(verdict.dependent,),
        estimates=(),
        sight=(SCORES.in_words(),),
        n=tested.dates.size,
        level=verdict.dependent.level,
        dependent=True,
    )


def _trained(start_key: Key, train_key: Key, fitted: Days, rounds: int) -> Energy:
    """Return an `Energy` trained on 2012 and 2013, from the round with the least loss on 2014."""
    training, validation = (
        (jnp.asarray(days.inputs), jnp.asarray(days.targets))
        for days in (
            fitted.within("2012-01-02", "2013-12-31"),
            fitted.within("2014-01-01", "2014-12-31"),
        )
    )
    start = eqx.filter_jit(Energy.create)(start_key, *training)
    energy = train(train_key, start, training, validation, rounds=rounds, resolution=RESOLUTION)
    return jax.block_until_ready(energy)


@contextmanager
def _stage(what: str) -> Iterator[None]:
    print(f"  {what} ...", end="", flush=True)
    started = time.perf_counter()
    yield
    print(f" {time.perf_counter() - started:.1f} s", flush=True)
