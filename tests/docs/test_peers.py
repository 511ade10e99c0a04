"""The page of tasks by other packages shows the code that ran and the numbers that came out."""

import csv

import numpy as np
import pytest
from test_experiments import EXPERIMENTS, load

FOLDER = EXPERIMENTS / "peers"


@pytest.fixture(scope="module")
def study():
    return load(FOLDER / "run.py")


@pytest.fixture(scope="module")
def results():
    with (FOLDER / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_is_of_this_code_and_these_numbers(study, results):
    page = load(FOLDER / "page.py")
    assert page.PAGE.read_text() == page.text(results, study.Config().n), "run page.py"
    changed = [results[0] | {"theirs": "0.5"}, *results[1:]]
    assert page.PAGE.read_text() != page.text(changed, study.Config().n)


def test_numbers_that_should_be_equal_are(study, results):
    peers = {(task.name, peer.package): peer for task in study.TASKS for peer in task.peers}
    for row in results:
        peer = peers[row["task"], row["package"]]
        difference = float(row["difference"])
        if peer.within is None:
            assert difference > 1e-4, row
            assert peer.why, row
        else:
            assert difference <= peer.within, row


def recomputed(study, results, names):
    data = study.peers_data.draw(np.random.default_rng(study.Config().seed), study.Config().n)
    for task in study.TASKS:
        if task.name in names:
            now = np.mean(np.asarray(task.ours(data), float))
            for row in results:
                if row["task"] == task.name:
                    np.testing.assert_allclose(now, float(row["ours"]), rtol=1e-5)


def test_our_numbers_are_those_of_today(study, results):
    recomputed(study, results, {"ECE", "central interval"})


@pytest.mark.slow
def test_all_our_numbers_are_those_of_today(study, results, free_promotion):
    recomputed(study, results, {task.name for task in study.TASKS})
