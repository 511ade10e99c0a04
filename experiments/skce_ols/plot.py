"""Truth and model, their quantiles, and the p-values of many such data sets."""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.scipy.special import ndtr
from jax.scipy.stats import norm

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

sys.path.insert(0, str(Path(__file__).parent))

FOLDER = Path(__file__).parent


def load_run():
    import importlib.util

    spec = importlib.util.spec_from_file_location("skce_ols_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(arguments: Sequence[str] | None = None) -> Path:
    jax.config.update("jax_enable_x64", True)
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    run = load_run()
    config = run.Config()
    # the data set of the first row, made again from its key
    study = run.make(config)
    data_key, _ = jax.random.split(study.key(study.cells[0]))
    train, (xs, ys), line = run.data(data_key, config.n_train, config.n)

    figure, (truth_axes, model_axes, quantile_axes, p_axes) = plt.subplots(
        1, 4, figsize=(13, 3.3), layout="constrained"
    )
    x, y = jnp.meshgrid(jnp.linspace(-1, 1, 201), jnp.linspace(-2, 2, 201))
    noise = jnp.maximum(0.15 * jnp.abs(1 + x), 1e-3)
    densities = {
        truth_axes: norm.pdf(y, jnp.sin(jnp.pi * x), noise),
        model_axes: norm.pdf(y, line(x), line.deviation),
    }
    for axes, density in densities.items():
        axes.pcolormesh(
            x, y, jnp.minimum(density, 2), cmap="Greys", vmin=0, vmax=2, rasterized=True
        )
        axes.plot(*train, "o", markersize=2.5, color="black", markeredgecolor="white", mew=0.4)
        axes.set_xlabel("x")
        axes.set_ylim(-2, 2)
    truth_axes.set_ylabel("y")
    truth_axes.set_title("truth, training data", fontsize=10)
    model_axes.set_title("least squares, normal noise", fontsize=10)

    levels = np.sort(np.asarray(ndtr((ys - line(xs)) / line.deviation)))
    n = len(levels)
    quantile_axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    quantile_axes.step([0, *levels, 1], [*(np.arange(n + 1) / n), 1], where="post", color="black")
    quantile_axes.set_xlabel("quantile level")
    quantile_axes.set_ylabel("share of targets below it")
    quantile_axes.set_title(f"{n} validation targets", fontsize=10)

    repeated = rows[1:] or rows
    bins = np.linspace(0, 1, 21)
    for name, label, style in (
        ("p_value", "SKCE", {"color": "0.35"}),
        ("p_value_of_quantiles", "quantiles (KS)", {"color": "black", "histtype": "step"}),
    ):
        p = np.asarray([float(row[name]) for row in repeated])
        share = np.mean(p < 0.05)
        p_axes.hist(
            p,
            bins,
            weights=np.full(p.size, 1 / p.size),
            label=f"{label}: {share:.0%} < .05",
            **style,
        )
    p_axes.axhline(0.05, color="0.6", linewidth=0.8)
    p_axes.set_xlabel("p-value")
    p_axes.set_ylabel("share of data sets")
    p_axes.set_title(f"{len(repeated)} fresh data sets", fontsize=10)
    p_axes.legend(frameon=False, fontsize=8)
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    print(main(sys.argv[1:]))
