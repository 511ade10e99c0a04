"""A first call compiles few programs: each operation by itself is one more, of 20 to 45 ms."""

import fuzz_calls
import jax
import pytest

import jaxcal

# about one and a half times what they compile; once it was 149, 112, 141 and 209
MOST = {
    "distance_from_calibration": 50,
    "compare": 40,
    "calibration_error": 90,
    "check_draws": 140,
}


@pytest.mark.parametrize("name", MOST)
def test_a_first_call_compiles_few_programs(name, caplog):
    recipes = fuzz_calls.recipes()
    recipe = (recipes[""] | recipes["sbi"])[name]
    function = getattr(jaxcal, name, None) or getattr(jaxcal.sbi, name)
    jax.clear_caches()
    with jax.log_compiles():
        str(function(**recipe))
    count = sum("Finished XLA compilation" in text for text in caplog.messages)
    assert 1 < count <= MOST[name]
