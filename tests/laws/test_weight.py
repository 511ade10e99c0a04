"""What a person has to hold: growth is a decision, and raises a number here in its own commit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from api import public

import jaxcal

FILES, LINES, NAMES = 184, 42_611, 140


def test_the_library_is_no_heavier_than_it_was():
    files = list(Path(jaxcal.__file__).parent.rglob("*.py"))
    assert len(files) <= FILES
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= LINES
    assert len(public()) <= NAMES


CALLS = """
import json, pathlib, sys
import jax, numpyro.distributions as dist
import jaxcal
from jaxcal import sbi

root = str(pathlib.Path(jaxcal.__file__).parent)
x, noise = jax.random.normal(jax.random.key(0), (2, 40, 2))
densities = jaxcal.Unnormalized(lambda center, y: -((y - center) ** 2).sum() / 2, x)
calls = {
    "kccsd_test": lambda: jaxcal.kccsd_test(0, densities, x + noise),
    "check_posterior": lambda: sbi.check_posterior(
        0, lambda theta, x: -((theta - x / 2) ** 2).sum(), x / 2 + noise / 2**0.5, x
    ),
}
for name, call in calls.items():
    codes = set()

    def entered(frame, event, _):
        code = frame.f_code
        if code.co_filename.startswith(root) and code.co_name[0] != "<" and code.co_flags & 1:
            codes.add(code)

    sys.setprofile(entered)
    call()
    sys.setprofile(None)
    lines = {(code.co_filename, line) for code in codes for *_, line in code.co_lines() if line}
    files = {code.co_filename for code in codes}
    print(json.dumps([name, len(lines), len(codes), len(files)]))
"""
ENTERED = {  # lines of code, functions and files that a first call enters
    "kccsd_test": (1_454, 193, 31),
    "check_posterior": (3_025, 386, 48),
}


@pytest.mark.slow
def test_calls_enter_no_more_of_the_library_than_they_did():
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True)
    for name, *sizes in map(json.loads, done.stdout.splitlines()):
        assert all(map(int.__le__, sizes, ENTERED[name])), (name, sizes)
