"""Do the tests keep their level? Rejection rates over calibrated data sets, cell by cell."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal import Unnormalized, kccsd_test, kcsd_test, ksd_test, nulls
from jaxcal.kernels import IMQ, Gaussian, Matern52, RationalQuadratic
from jaxcal.nulls import BlockNormal, DependentWild, Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from reference.nulls import Bound, Gamma, Multinomial, Spectrum

FOLDER = Path(__file__).parent
BATCH = 50  # data sets a step: enough for two cores, little memory

KERNELS = {
    "Gaussian": Gaussian,
    "IMQ": IMQ,
    "Matern52": Matern52,
    "RationalQuadratic": RationalQuadratic,
}
NULLS = {  # each made with the number of draws, where it draws
    "Wild": Wild,
    "DependentWild": DependentWild,
    "Multinomial": Multinomial,
    "Spectrum": Spectrum,
    "Gamma": lambda n_draws: Gamma(),
    "BlockNormal": lambda n_draws: BlockNormal(),
    "BlockNormal(2)": lambda n_draws: BlockNormal(2),
}
DEGREES = 5  # of freedom of the Student t family


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    sizes: tuple[int, ...] = (32, 64, 128)
    kernels: tuple[str, ...] = tuple(KERNELS)
    tests: tuple[str, ...] = ("kccsd", "kcsd", "ksd")
    n_draws: int = 500
    nulls: tuple[str, ...] = tuple(NULLS)
    seed: int = 20230721
    whole: bool = True  # False: the first family alone


QUICK = Config(
    data_sets=20,
    sizes=(16,),
    kernels=("IMQ",),
    tests=("kcsd",),
    n_draws=50,
    nulls=("Wild", "Gamma", "BlockNormal(2)"),
    whole=False,
)


# Families of calibrated models: key, n -> predictions, targets, inputs


def gaussian(key: jax.Array, n: int):
    """N(x, I) in two dimensions."""
    x, noise = jax.random.normal(key, (2, n, 2))
    return dist.Normal(x, jnp.ones_like(x)).to_event(1), x + noise, x


def hgm(key: jax.Array, n: int):
    """The paper's HGM, N(sum x, v(x)) with 1 <= v <= 11, with targets drawn from it."""
    x_key, y_key = jax.random.split(key)
    x = jax.random.normal(x_key, (n, 3))
    sd = jnp.sqrt(1 + 10 * jnp.exp(-jnp.sum((x - 2 / 3) ** 2, axis=1) / (2 * 0.8**2)))
    mean = jnp.sum(x, axis=1)
    return dist.Normal(mean, sd), mean + sd * jax.random.normal(y_key, (n,)), x


def widths(key: jax.Array, n: int):
    """Two correlated coordinates whose covariance varies with x."""
    x, noise = jax.random.normal(key, (2, n, 2))
    zero = jnp.zeros(n, x.dtype)
    rows = [jnp.exp(x[:, 0] / 2), zero, x[:, 1] / 2, jnp.exp(-x[:, 0] / 2)]
    root = jnp.stack(rows, axis=1).reshape(n, 2, 2)
    targets = x + jnp.einsum("nij,nj->ni", root, noise)
    return dist.MultivariateNormal(x, scale_tril=root), targets, x


def student(key: jax.Array, n: int):
    """Student t with 5 degrees of freedom around x: heavy-tailed targets, bounded scores."""
    x_key, y_key = jax.random.split(key)
    x = jax.random.normal(x_key, (n,))
    return dist.StudentT(DEGREES, x, 1.0), x + jax.random.t(y_key, DEGREES, (n,)), x


def _quartic(x: jax.Array, y: jax.Array) -> jax.Array:
    return -((y - x) ** 4) / 4


def quartic(key: jax.Array, n: int):
    """exp(-(y - x)^4 / 4), known up to its constant; (y - x)^4 / 4 has the Gamma(1/4) law."""
    x_key, y_key, sign_key = jax.random.split(key, 3)
    x = jax.random.normal(x_key, (n,))
    size = (4 * jax.random.gamma(y_key, 0.25, (n,))) ** 0.25
    return Unnormalized(_quartic, x), x + size * jax.random.rademacher(sign_key, (n,), x.dtype), x


CONDITIONAL = {f.__name__: f for f in (gaussian, hgm, widths, student, quartic)}


def _quartic_at_0(y: jax.Array) -> jax.Array:
    return _quartic(0.0, y)


SINGLE = {  # the member at x = 0, for KSD
    "gaussian": dist.Normal(jnp.zeros(2), jnp.ones(2)).to_event(1),
    "student": dist.StudentT(DEGREES, 0.0, 1.0),
    "quartic": _quartic_at_0,
}


# Several nulls at once, and a bound


class Every(eqx.Module):
    """Several nulls of all pairs in one pass: their p-values stand where draws would; NaN for the
    nulls of blocks, which ask for other pairs."""

    each: tuple[Any, ...]

    def _all_pairs(self) -> list[bool]:
        return [not isinstance(null, BlockNormal) for null in self.each]

    def needs(self, key, features):
        keys = jax.random.split(key, len(self.each))
        pairs = zip(keys, self.each, self._all_pairs(), strict=True)
        asked = [null.needs(k, features) for k, null, used in pairs if used]
        weights = [one.weights for one in asked if one.weights is not None]
        together = jnp.concatenate(weights, axis=1) if weights else None
        return nulls.Needs(together, any(one.squares for one in asked))

    def outcome(self, sums):
        outcomes, start = [], 0
        for null, used in zip(self.each, self._all_pairs(), strict=True):
            if not used:
                outcomes.append(None)
                continue
            columns = slice(start, start + getattr(null, "n_draws", 0))
            start = columns.stop
            part = sums._replace(weights=sums.weights[:, columns], forms=sums.forms[:, columns])
            outcomes.append(null.outcome(part))
        p = jnp.stack([jnp.nan if one is None else one.p_value[0] for one in outcomes])
        first = next(one for one in outcomes if one is not None)
        return first._replace(samples=p[None])

    def least_p_value(self, n):
        return 0.0


def stein_bound(kernel: Any) -> float:
    r"""A b with abs(h) <= b for Student t predictions in one dimension, 0 <= k <= 1.

    With l(x, y) = f(x - y): h = f s s' + (s' - s) f' - f'', and abs(s) <= (nu + 1) / (2 sqrt nu)
    for scale 1. The largest abs f', abs f'' are taken on a fine grid, plus 1 %.
    """
    score = (DEGREES + 1) / (2 * DEGREES**0.5)
    first = jax.grad(lambda r: kernel(r, jnp.zeros(())))
    grid = jnp.linspace(1e-4, 10, 20001)
    slope = jnp.max(jnp.abs(jax.vmap(first)(grid)))
    curvature = jnp.max(jnp.abs(jax.vmap(jax.grad(first))(grid)))
    return round(1.01 * float(score**2 + 2 * score * slope + curvature), 3)


# The study


def make(config: Config) -> runner.Study:
    """Rejection rates at 0.05 and 0.01 of every test, null and target kernel, under calibration."""
    groups = [
        ("gaussian", test, kernel, "none", "standardized", n)
        for test, kernel, n in product(config.tests, config.kernels, config.sizes)
    ]
    if config.whole:
        other = product(("hgm", "student", "quartic"), config.tests, ("Gaussian", "IMQ"))
        groups += [
            (family, test, kernel, "none", "standardized", 64)
            for family, test, kernel in other
            if test != "ksd" or family in SINGLE
        ]
        forms = ("none", "isotropic", "diagonal", "full")
        groups += [
            ("widths", "kccsd", "Gaussian", form, "standardized", n)
            for form, n in product(forms, config.sizes)
        ]
    cells = [(*group, null) for group in groups for null in config.nulls]
    if config.whole:
        cells += [
            ("student", test, kernel, "none", "original", 64, "Bound")
            for test, kernel in product(config.tests, config.kernels)
        ]

    @lru_cache(maxsize=1)  # the cells that differ in the null alone come from one program
    def p_values(family, test, kernel, form, units, n, bounded):
        target_kernel = KERNELS[kernel](1.0 if bounded else None)
        used = {name: NULLS[name](config.n_draws) for name in config.nulls}
        if bounded:
            used = {"Bound": Bound(stein_bound(target_kernel))}
        options = {
            "target_kernel": target_kernel,
            "precondition": None if form == "none" else form,
            "standardize": units == "standardized",
        }

        def result(key, null):
            data_key, test_key = jax.random.split(key)
            predictions, targets, inputs = CONDITIONAL[family](data_key, n)
            how = options | {"null": null}
            if test == "ksd":
                targets = targets - inputs  # every family is a location family around x
                return ksd_test(test_key, SINGLE[family], targets, **how)
            if test == "kcsd":
                return kcsd_test(test_key, predictions, targets, inputs, **how)
            return kccsd_test(test_key, predictions, targets, **how)

        def one(key):
            p = result(key, Every(tuple(used.values()))).null_samples
            for place, null in enumerate(used.values()):
                if isinstance(null, BlockNormal):
                    p = p.at[place].set(result(key, null).p_value)
            return p

        def all_data_sets(key):
            keys = jax.random.split(key, config.data_sets)
            return jax.lax.map(one, keys, batch_size=min(BATCH, config.data_sets))

        program = jax.jit(all_data_sets, compiler_options=runner.FASTER_COMPILATION)
        key = study.key(
            dict(zip(study.names, (family, test, kernel, form, units, n), strict=False))
        )
        return dict(zip(used, program(key).T, strict=True))

    def measure(cell, key):
        *group, null, _ = cell.values()
        p = p_values(*group, null == "Bound")[null]
        return runner.rejections(p)

    columns = ("family", "test", "kernel", "precondition", "units", "n", "null", "data_sets")
    study = runner.Study(
        [dict(zip(columns, (*cell, config.data_sets), strict=True)) for cell in cells],
        runner.REJECTIONS,
        measure,
        config.seed,
        paired=("null",),
    )
    return study


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
