"""``python -m jaxcal``: a demonstration on weather, and the test for people who bring arrays.

The exit status is 0 where the command did its work, whatever the verdict, and 2 with one sentence
on stderr where its input cannot be used.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxcal import __version__

NULLS = {
    "wild": "Wild",
    "dependent": "DependentWild",
    "multinomial": "Multinomial",
    "spectrum": "Spectrum",
    "gamma": "Gamma",
    "block": "BlockNormal",
}
WITHOUT_DRAWS = ("gamma", "block")

FILE_HELP = """\
Arrays in FILE.npz, float32 or float64 (n observations of d numbers):
  targets      [n, d] or [n]   what was observed
  scores       [n, d]          gradient of each prediction's log density at its target
and, to tell predictions apart, one of
  node_scores  [n, m, d]       the same gradients at m points, the same for all predictions
                               (10 standard normal points in standardized targets will do);
                               the points themselves may come along as 'nodes' [m, d]
  features     [n, q]          vectors that describe the predictions (their means and widths,
                               say). The inputs of the model instead ask the stronger question
                               whether predictions are right GIVEN the input.

examples:
  Python   numpy.savez("mine.npz", targets=y, scores=s, features=f)
  R        reticulate::import("numpy")$savez("mine.npz", targets=y, scores=s, features=f)
  Julia    using NPZ; npzwrite("mine.npz", Dict("targets"=>y, "scores"=>s, "features"=>f))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="jaxcal", description="Kernel calibration tests.")
    parser.add_argument("--version", action="version", version=f"jaxcal {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(
        commands.add_parser("demo", help="fit and test two forecasters of tomorrow's weather")
    )
    _add_test(
        commands.add_parser(
            "test",
            help="test arrays from any language: is the model calibrated?",
            epilog=FILE_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    given = parser.parse_args(argv)
    return given.run(given)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=_output, default=Path("jaxcal-demo.png"), help="figure [%(default)s]"
    )
    parser.add_argument("--seed", type=_at_least(0), default=0, help="[%(default)s]")
    parser.add_argument("--draws", type=_at_least(1), default=500, help="of the null [%(default)s]")
    parser.add_argument(
        "--rounds", type=_at_least(1), default=30, help="of training, 20 steps each [%(default)s]"
    )
    parser.set_defaults(run=_demo)


def _add_test(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.npz")
    parser.add_argument("--json", type=_output, metavar="OUT", help="write every number as JSON")
    parser.add_argument("--figure", type=_output, metavar="OUT", help="draw (.png, .pdf, .svg)")
    parser.add_argument(
        "--null",
        choices=NULLS,
        default="wild",
        help="law of the statistic under calibration; 'dependent' is for observations in the "
        "order of time that depend on each other [%(default)s]",
    )
    parser.add_argument("--coordinates", action="store_true", help="a p-value a target coordinate")
    parser.add_argument("--seed", type=_at_least(0), default=0, help="[%(default)s]")
    parser.add_argument("--draws", type=_at_least(1), help="of the null, where it has any [500]")
    parser.add_argument(
        "--dtype", choices=("float32", "float64"), help="compute in [the type in the file]"
    )
    parser.set_defaults(run=_test)


def _demo(given: argparse.Namespace) -> int:
    from jaxcal import demo  # numpyro, optax and matplotlib only where they are used

    try:
        demo.run(given.output, seed=given.seed, draws=given.draws, rounds=given.rounds)
    except OSError as error:
        return _fail(f"{error.filename or given.output}: {error.strerror or error}")
    return 0


def _test(given: argparse.Namespace) -> int:
    from jaxcal import arrays_file, report

    if given.draws is not None and given.null in WITHOUT_DRAWS:
        return _fail(f"--draws: the {given.null} null is a formula and has no draws")
    try:
        arrays = arrays_file.read(given.file, given.dtype)
        result = report.run(
            arrays,
            null=NULLS[given.null],
            draws=given.draws,
            coordinates=given.coordinates,
            seed=given.seed,
        )
    except (arrays_file.BadFile, report.Unusable) as error:
        return _fail(str(error))
    for name in arrays.ignored:
        print(f"{given.file}: the array '{name}' is not used", file=sys.stderr)
    print(result)
    try:
        if given.json:
            settings = {"file": str(given.file), "seed": given.seed, "version": __version__}
            report.write_json(result, given.json, settings)
        if given.figure:
            report.write_figure(result, given.figure)
    except (OSError, ValueError) as error:  # a full disk; a kind of figure nobody draws
        return _fail(" ".join(str(error).split()))
    return 0


def _fail(sentence: str) -> int:
    print(f"jaxcal: {sentence}", file=sys.stderr)
    return 2


def _output(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; wanted the name of a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist")
    return path


def _at_least(smallest: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = smallest - 1
        if value < smallest:
            raise argparse.ArgumentTypeError(f"wanted a whole number >= {smallest}, got {text!r}")
        return value

    return whole


if __name__ == "__main__":
    sys.exit(main())
