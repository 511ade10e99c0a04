"""A first call compiles few programs: each operation by itself is one more, of 20 to 45 ms."""

import fuzz_calls
import jax
import numpy as np
import pytest

import jaxcal

# about one and a half times 30, 17, 62 and 74, which they compile; it was 149, 112, 141 and 279
MOST = {
    "distance_from_calibration": 45,
    "compare": 25,
    "calibration_error": 90,
    "check_draws": 110,
}


def programs(caplog, call):
    """What JAX says of each program that a call compiles."""
    caplog.clear()
    with jax.log_compiles():
        call()
    return [text for text in caplog.messages if "Finished XLA compilation" in text]


@pytest.mark.slow
@pytest.mark.usefixtures("programs_stay")
@pytest.mark.parametrize("name", MOST)
def test_a_first_call_compiles_few_programs(name, caplog):
    recipes = fuzz_calls.recipes()
    recipe = (recipes[""] | recipes["sbi"])[name]
    function = getattr(jaxcal, name, None) or getattr(jaxcal.sbi, name)
    jax.clear_caches()
    count = len(programs(caplog, lambda: str(function(**recipe))))
    assert 1 < count <= MOST[name]


@pytest.mark.slow
@pytest.mark.usefixtures("programs_stay")
def test_equal_predictions_share_one_program(caplog):
    def call(n):
        v, y = np.round(np.linspace(0, 1, n), 1), np.arange(n) % 2
        return lambda: jaxcal.distance_from_calibration(0, v, y)

    jax.clear_caches()
    first, second = programs(caplog, call(60)), programs(caplog, call(61))
    name = "jit(_measured)"
    assert sum(name in text for text in first) == 1
    assert not any(name in text for text in second)
