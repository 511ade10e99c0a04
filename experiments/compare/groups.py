"""Comparing groups of different size: how often is one of two equally calibrated groups accused?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxcal import compare

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent / "groups"
SMALL = 0.3  # the share of the first group
# temperatures of the two groups: 1 is calibrated, below is too sure
DESIGNS = {
    "calibrated": (1.0, 1.0),
    "certain_labels": (1.0, 1.0),
    "wrong": (0.5, 0.5),
    "one_worse": (0.5, 1.0),
}
MEASURED = ("rejected", "zero_covered")


@dataclass(frozen=True)
class Config:
    measures: tuple[tuple[str, int], ...] = (("probability", 500), ("ckce", 100))
    n: int = 200
    n_draws: int = 199
    seed: int = 20261123


QUICK = Config(measures=(("probability", 4), ("ckce", 4)), n=40, n_draws=19)


def make(config: Config) -> runner.Study:
    """Two groups of three classes; with certain_labels the second group's labels are nearly so."""
    cells = [
        {"design": design, "n": config.n, "measure": measure, "data_sets": sets}
        for measure, sets in config.measures
        for design in DESIGNS
    ]
    place = (jnp.arange(config.n) >= SMALL * config.n).astype(int)

    def measure(cell, key):
        temperatures = jnp.asarray(DESIGNS[cell["design"]])[place][:, None]
        options = {"bandwidth": 0.6} if cell["measure"] == "ckce" else {}
        sharpness = jnp.where((place == 1) & (cell["design"] == "certain_labels"), 4.0, 1.5)

        @runner.spread
        def every(key):
            logit_key, label_key, test_key = jax.random.split(key, 3)
            logits = sharpness[:, None] * jax.random.normal(logit_key, (config.n, 3))
            labels = jax.random.categorical(label_key, logits)
            result = compare(
                test_key,
                jax.nn.softmax(logits / temperatures),
                labels,
                groups=place,
                n_draws=config.n_draws,
                measure=cell["measure"],
                **options,
            )
            d = result.differences
            return d.p_adjusted[0, 1] <= 0.05, (d.low[0, 1] <= 0) & (d.high[0, 1] >= 0)

        rates = every(jax.random.split(key, cell["data_sets"]))
        return {name: jnp.mean(rate) for name, rate in zip(MEASURED, rates, strict=True)}

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("data_sets", "measure"))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
