"""Writes `notebooks/docs/peers.md` from `results.csv` and the functions that ran.

python experiments/peers/page.py
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "field"))
sys.path.insert(0, str(Path(__file__).parent))
import field_table
import runner
from peers_tasks import TASKS, VERSIONS, Peer, Task, Words

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "notebooks" / "docs" / "peers.md"
Rows = Mapping[tuple[str, str], Mapping[str, str]]

HEAD = """\
# The same tasks by other packages

Tasks that other packages and jaxcal share, in their words and in ours, run on the same data, with
the numbers of both. The blocks of code are those that ran
(`experiments/peers`), the numbers are those of `experiments/peers/results.csv`, and a test
holds this page to both. Versions:
{versions}.

The data: {n} predictions of an overconfident classifier of four classes (`logits`, `probabilities`,
`labels`; `confidence` of the most likely class and whether it was `correct`), the probability `p`
of its first class and whether it came true, `y`; Gaussian forecasts `mean`, `sd` of numbers
`targets`, too narrow by a fifth; and 100 `draws` of each of {k} posteriors of two parameters
`thetas` given `xs`, too narrow by a tenth. `dist` is `numpyro.distributions`, `np` is NumPy.

{equal} of {all} pairs of numbers agree, most of them to the last digits. In the remaining ones the
same name stands for different quantities; the sections below say which.

| task | package | theirs | ours | largest difference | equal within |
|---|---|---|---|---|---|
{table}

Where a task has several numbers (a curve, ranks), `theirs` and `ours` are their means. `OfLogits`
and `Posterior` hand logits and draws that exist already to scikit-learn and sbi
(`experiments/peers`).
"""

FIELD = """\
## p-values of posteriors, side by side

Shares of data sets of n pairs rejected at .05, all tests on the same ones (`experiments/field`):
posteriors that are right ("correct"; bold where the share is not chance at .001), and with one
fault each. The column "data sets" counts those of the right posterior and those of each fault: with
1,000 right ones a share has a standard error of .007, with 200 faulty ones of at most .035, with 10
of .16. Tests that train classifiers were measured on fewer, as a data set costs up to 2 processor
seconds. Draws are 99 exact ones of each posterior; "network" is a mixture density network trained
on 400 simulations, "flow" an autoregressive flow trained on 1,000 until a tenth of them is
predicted worse, and parameters of "correct" are drawn from them. Where a library has a p-value for
each parameter, the smallest is multiplied by their number. `experiments/power` shows how power
grows with the number of pairs.

{field}

What each number means:

* `calibration_test` and `kccsd_test` use log densities up to their constants, and no draws;
  `check_draws` and `coverage` use draws. The p-value of `coverage` is an upper bound, valid at
  every n, so it may reject too rarely.
* **sbi** `check_sbc` compares whole numbers 0 to m with a continuous distribution, which makes it
  reject somewhat too often when m is small. `check_tarp` compares the two *curves* of expected
  coverage at the edges of bins as if they were two samples: its p-value never rejected. Look at
  its area to the curve.
* **sbi** `LC2ST` and `LC2ST_NF` train a classifier on the pairs and test the posterior at *one*
  observation (here the last x), so their shares do not compare with those of tests of all pairs:
  a few hundred pairs say little about one x. `LC2ST` has one p-value from 19 classifiers under
  the null, `LC2ST_NF` one from 199 that are shared by all data sets.
* **BayesFlow** `classifier_two_sample_test` ("conformal") doubles the mean p-value of five folds,
  which is valid but cautious: it rejects right posteriors far less often than .05.
* **BayesFlow** `calibration_log_gamma` is negative where the most extreme point of the ranks'
  distribution function is below its 5 % quantile under uniformity: a sound test. Its TARP
  (`accuracy_random_points`) has the p-value of sbi's.
* **ArviZ** `uniformity_test` combines the points of the distribution function by a Cauchy sum.
  PRIT-C is meant for ranks, but given counts / m it rejects nearly all right posteriors, as a
  share of 0 or 1 has probability 0 there. In the other rows the place of a parameter between two
  draws is random.
* **numpyro** `vsbc_diagnostic` asks whether shares are symmetric about 1 / 2 by a two-sample test
  of them and their mirror images, which are not independent: it rejects right posteriors too
  often. Its statistic is applied here to exact draws.

"""

TAIL = """\
## What to use them for

scikit-learn and netcal recalibrate (isotonic and beta calibration, binning), probcal covers credit
risk (rating grades, monitoring, Venn-Abers, tests for a binary event), uncertainty-toolbox
recalibrates regressions, relplot draws a smooth reliability diagram, torchmetrics accumulates over
batches during training, and sbi has LC2ST and TARP for its posterior objects. jaxcal recalibrates
little: by temperature, and a binary event by intervals.

What jaxcal adds is an answer to *is it more than chance, and where*: `skce_test` and
`calibration_test` for classes, distributions, draws and densities known up to a constant, with
levels that are measured (`experiments/level`, `experiments/power`); `plots.where` for shift and
spread along an input, with limits; `compare` for several models; intervals by
`distance_from_calibration` and `calibration_error`; and `sbi.check_posterior`, which needs no
draws.
"""


def body(words: Words) -> str:
    """What a function does, without its first line, ``return`` and ``d.``."""
    text = textwrap.dedent(inspect.getsource(words).split("\n", 1)[1]).strip()
    return re.sub(r"\bd\.", "", re.sub(r"^return ", "", text, flags=re.MULTILINE))


def number(text: str) -> str:
    return f"{float(text):.4g}"


def row(task: Task, peer: Peer, rows: Rows) -> str:
    values = rows[task.name, peer.package]
    within = "different" if peer.within is None else f"{peer.within:.0e}"
    numbers = [number(values[name]) for name in ("theirs", "ours")]
    difference = f"{float(values['difference']):.1e}"
    return " | ".join(["", task.name, peer.package, *numbers, difference, within, ""]).strip()


def section(task: Task) -> str:
    blocks = [f"### {task.name}\n\n{task.question}.".replace("?.", "?"), code("jaxcal", task.ours)]
    for peer in task.peers:
        blocks.append(code(peer.package, peer.words))
        if peer.why:
            blocks.append(f"Different, because {peer.why}.")
    return "\n\n".join(blocks)


def code(package: str, words: Words) -> str:
    return f'```python title="{package}"\n{body(words)}\n```'


def text(results: Sequence[Mapping[str, str]], n: int) -> str:
    """The page for these results of n observations."""
    rows = {(each["task"], each["package"]): each for each in results}
    pairs = [(task, peer) for task in TASKS for peer in task.peers]
    head = HEAD.format(
        versions=", ".join(f"{name} {version}" for name, version in VERSIONS.items()),
        n=f"{n:,}",
        k=n // 5,
        equal=sum(peer.within is not None for _, peer in pairs),
        all=len(pairs),
        table="\n".join(row(task, peer, rows) for task, peer in pairs),
    )
    field = FIELD.format(field=field_table.tables())
    return "\n".join([head, field, "## Task by task\n", "\n\n".join(map(section, TASKS)), "", TAIL])


def main() -> None:
    from run import Config

    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text(runner.read(FOLDER / "results.csv"), Config().n))


if __name__ == "__main__":
    main()
