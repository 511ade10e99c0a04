"""Run ``python -m jaxcal``: a demonstration on weather forecasts, checks of files and folders.

The exit status is 0 for a verdict "rejected" or "not rejected", 3 for "cannot tell", 2 with one
sentence on stderr for unusable input or options, 130 for an interrupt, and 141 if the reader of the
output closed it.
"""

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcal import __version__
from jaxcal.commands import command_line

if TYPE_CHECKING:
    from jaxcal.checking.check import CheckReport

UNUSABLE, CANNOT_TELL, INTERRUPTED, NO_READER = 2, 3, 130, 141  # the last two by shell convention

STATUS_HELP = """\
exit status:
  0    rejected or not rejected (the report and "verdict" in the JSON say which)
  2    a file or an option cannot be used; one sentence on stderr says why
  3    the test cannot tell (the report and "reason" in the JSON say why)
  130  interrupted         141  the output was closed early, as by "| head -1"
"""

CHECK_HELP = """\
FILE is one of
  .npz      float32 or float64 arrays of n observations of d numbers: 'targets' ([n, d] or [n]) with
            one of
              probabilities  [n], or [n, m] for m classes; targets are integers
              draws          [n, m, d]
              scores         [n, d], gradient of each prediction's log density at its target, with
                             'node_scores' [n, m, d], the same gradients at m points that are the
                             same for all predictions (10 standard normal points in standardized
                             targets will do; 'nodes' [m, d] may come along); or with 'features'
                             [n, q], vectors that describe the predictions (the inputs of the model
                             ask the stronger question whether predictions are right GIVEN them)
  a table   .csv, .tsv, .json, .jsonl (each also .gz) or .parquet: a column 'label' with numbers or
            names of classes, and a column of probabilities for each class, named by its class
            (p0, p1, ..; cat, dog, ..), or one column with the probability of label 1 (or yes, or
            True); or a column 'probabilities' of lists. Columns 'id' and 'index' are left out, and
            any other column is refused. The columns that were used are listed on stderr. Where
            names are ambiguous:  --columns label=outcome 0=p_alive 1=p_dead
  a folder  of .parquet, .csv (also .gz), .npz or .npy shards, or a URI of one (s3://, gs://,
            hdfs://), tested in one pass of constant memory. Tables have a column 'targets' or
            'label' and one of: p0, p1, ..; p, the probability of label 1 or yes; 'probabilities',
            lists; 'mean' and 'deviation', numbers or lists, of normal predictions; 'scores' and
            'features', lists. Other columns are ignored. For other names: --columns, with
            target=NAME mean=NAME deviation=NAME for normal predictions. Arrays of .npz and .npy
            have the same names; names of the .npy files of one shard share a prefix:
            a-targets.npy, a-probabilities.npy

many machines: run the same command once for each share of the shards, then add up the states
  python -m jaxcal check FOLDER --shard 1/2 --state 1.npz
  python -m jaxcal check FOLDER --shard 2/2 --state 2.npz
  python -m jaxcal merge 1.npz 2.npz

examples of .npz:
  Python   numpy.savez("mine.npz", targets=y, scores=s, features=f)
  R        reticulate::import("numpy")$savez("mine.npz", targets=y, scores=s, features=f)
  Julia    using NPZ; npzwrite("mine.npz", Dict("targets"=>y, "scores"=>s, "features"=>f))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    ``argv``: command line arguments. If None, they are those of the process, and compiled programs
    are kept in the user's cache folder unless ``--no-cache`` is given.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may not be printable
            stream.reconfigure(errors="backslashreplace")
    try:
        with _interruptible():
            options = _parser().parse_args(argv)
            if argv is None and getattr(options, "cache", False):
                command_line.keep_programs()
            status = options.run(options)
            print(end="", flush=True)  # report write errors now, not when Python exits
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except MemoryError as error:
        return _fail(f"out of memory ({error})")
    except BrokenPipeError:
        command_line.drop_output()
        return NO_READER
    except OSError as error:  # such as standard output on a full disk; files have their own message
        command_line.drop_output()
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
    return status


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="jaxcal",
        description="Test whether the uncertainty of probabilistic predictions can be trusted.",
        epilog=STATUS_HELP,
        formatter_class=layout,
    )
    parser.add_argument("--version", action="version", version=f"jaxcal {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="fit and test two forecasters of tomorrow's weather")
    demo.set_defaults(run=_demo)
    _add(demo, "--output", "--seed", "--draws", "--rounds", "--no-cache")

    check = commands.add_parser(
        "check",
        help="test the calibration of the predictions in a file or folder",
        epilog=f"{CHECK_HELP}\n{STATUS_HELP}",
        formatter_class=layout,
    )
    check.set_defaults(run=_check)
    _add(check, "file", "--columns", "--html", "--json", "--level", "--dependent", "--seed")
    _add(check, "--no-cache")
    many = check.add_argument_group("for a folder of shards, or one file in a single pass")
    _add(many, "--state", "--shard", "--skip-bad", "--batch", "--first", "--features")

    merge = commands.add_parser(
        "merge", help="add up states saved by 'check --state' and test all of their rows"
    )
    merge.set_defaults(run=_merge)
    _add(merge, "files", "--json", "--level", "--no-cache")

    explain = commands.add_parser("explain", help="explain what a warning means and what to do")
    explain.set_defaults(run=_explain)
    _add(explain, "names")
    return parser


OPTIONS: dict[str, dict[str, Any]] = {
    "file": {
        "type": command_line.source,
        "metavar": "FILE",
        "help": "file, folder or URI, see below",
    },
    "files": {"type": Path, "metavar": "STATE", "nargs": "+"},
    "names": {
        "nargs": "*",
        "metavar": "NAME",
        "help": "name in brackets at the end of a warning (default: all names)",
    },
    "--columns": {
        "nargs": "+",
        "default": (),
        "metavar": "KEY=NAME",
        "help": "columns of a table to read: label=NAME, and CLASS=NAME for each class or for one "
        "of two; or target=NAME mean=NAME deviation=NAME",
    },
    "--html": {
        "type": command_line.output,
        "metavar": "OUT",
        "help": "write an HTML page with figures",
    },
    "--json": {
        "type": command_line.json_output,
        "metavar": "OUT",
        "help": "write all numbers as JSON; '-' writes to stdout, and the report to stderr",
    },
    "--dependent": {
        "action": "store_true",
        "help": "observations are in time order and may depend on each other",
    },
    "--no-cache": {
        "dest": "cache",
        "action": "store_false",
        "help": "do not keep compiled programs in the user's cache folder between runs",
    },
    "--state": {
        "type": command_line.output,
        "metavar": "FILE",
        "help": "save sums to this file, and continue from it if it exists",
    },
    "--shard": {
        "type": command_line.share,
        "metavar": "i/N",
        "help": "read only the i-th of N shares",
    },
    "--skip-bad": {
        "action": "store_true",
        "help": "leave out rows that cannot be used, and say how many (default: stop at the first)",
    },
}
COUNT = command_line.whole(1, 10**6)
# name: type, default, help
WITH_DEFAULT: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "--output": (command_line.figure, Path("jaxcal-demo.png"), "file of the figure"),
    "--seed": (command_line.whole(0, 2**64 - 1), 0, "random seed"),
    "--level": (command_line.level, 0.05, "level of the test"),
    "--draws": (COUNT, 500, "draws from the null distribution"),
    "--rounds": (COUNT, 30, "rounds of training, 20 steps each"),
    "--batch": (COUNT, 10_000, "rows per batch"),
    "--first": (COUNT, 2000, "rows, drawn from all shards, that fix units and kernels"),
    "--features": (command_line.whole(2, 10**5, even=True), 100, "number of random features"),
}


def _add(parser: argparse._ActionsContainer, *names: str) -> None:
    for name in names:
        if name in OPTIONS:
            parser.add_argument(name, **OPTIONS[name])
        else:
            kind, default, text = WITH_DEFAULT[name]
            parser.add_argument(name, type=kind, default=default, help=f"{text} [%(default)s]")


def _check(options: argparse.Namespace) -> int:
    from jaxcal.streaming.arrays_file import BadFile

    if fault := command_line.overwritten(options.file, options.json, options.html, options.state):
        return _fail(fault)
    in_a_pass = isinstance(options.file, str) or options.file.is_dir()
    in_a_pass = in_a_pass or options.state or options.shard or options.skip_bad
    in_a_pass = in_a_pass or any(text.startswith("mean=") for text in options.columns)
    try:
        return (_check_shards if in_a_pass else _check_file)(options)
    except BadFile as error:
        return _fail(str(error))


def _check_shards(options: argparse.Namespace) -> int:
    from jaxcal.checking import streamed
    from jaxcal.streaming import Shards

    if options.dependent:
        return _fail("--dependent: not for shards, which are tested in one pass in linear time")
    shards = Shards(
        options.file,
        options.batch,
        columns=options.columns,
        share=options.shard or (1, 1),
        skip_bad=options.skip_bad,
    )
    with command_line.naming(options.state or options.file):
        report = streamed.run(
            shards,
            seed=options.seed,
            level=options.level,
            rows=options.first,
            features=options.features,
            state=options.state,
        )
    if shards.left_out:
        text = f"left out {shards.left_out} rows that cannot be used; the first: {shards.fault}"
        print(f"{options.file}: {text}", file=sys.stderr)
    settings = {"file": str(options.file), "seed": options.seed, "left_out": shards.left_out}
    return _shown(report, options, picture=options.html, **settings)


def _merge(options: argparse.Namespace) -> int:
    from jaxcal.checking import streamed
    from jaxcal.streaming.arrays_file import BadFile

    if fault := command_line.overwritten(*options.files, options.json):
        return _fail(fault)
    try:
        report, left_out = streamed.merged(options.files, level=options.level)
    except BadFile as error:
        return _fail(str(error))
    files = [str(path) for path in options.files]
    return _shown(report, options, files=files, left_out=left_out)


def _check_file(options: argparse.Namespace) -> int:
    from jaxcal.checking import files

    report = files.checked(
        options.file,
        seed=options.seed,
        level=options.level,
        dependent=options.dependent,
        columns=options.columns,
    )
    settings = {"file": str(options.file), "seed": options.seed}
    return _shown(report, options, picture=options.html, **settings)


def _demo(options: argparse.Namespace) -> int:
    from jaxcal.commands import demo  # imported late: needs numpyro, optax and matplotlib

    with command_line.naming(options.output):
        verdicts = demo.run(
            options.output, seed=options.seed, draws=options.draws, rounds=options.rounds
        )
    return _status(forecaster.dependent.verdict for forecaster in verdicts)


def _shown(
    report: "CheckReport",
    options: argparse.Namespace,
    *,
    picture: Path | None = None,
    **settings: object,
) -> int:
    """Print a report and return the exit status. Write JSON, which includes ``settings``, if
    ``options.json`` is set. Write an HTML page to ``picture`` unless it is None."""
    with command_line.in_its_type(report):
        print(report, flush=True, file=sys.stderr if options.json == "-" else sys.stdout)
        if options.json:
            settings = {"version": __version__, **settings}
            with command_line.naming(options.json):
                command_line.write_json(report, options.json, settings)
        if picture:
            with command_line.naming(picture):
                report.to_html(picture)
        return _status([report.verdict])


def _explain(options: argparse.Namespace) -> int:
    from jaxcal.results.notes import explanations

    sections = explanations()
    for name in options.names:
        if name.strip("[]") not in sections:
            return _fail(f"{name}: no warning has this name; there are {', '.join(sections)}")
    for name in options.names or sections:
        print(f"{name.strip('[]')}\n{sections[name.strip('[]')]}\n")
    return 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Return a context in which an interrupt (SIGINT) ends the process at once, as JAX may lose a
    KeyboardInterrupt. It has no effect outside the main thread or if the caller set a handler."""
    handler, main_thread = signal.getsignal(signal.SIGINT), threading.main_thread()
    if handler is not signal.default_int_handler or threading.current_thread() is not main_thread:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(_fail("interrupted", INTERRUPTED)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _status(verdicts: Iterable[str]) -> int:
    return CANNOT_TELL if "cannot tell" in verdicts else 0


def _fail(sentence: str, status: int = UNUSABLE) -> int:
    print(f"jaxcal: {sentence}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
