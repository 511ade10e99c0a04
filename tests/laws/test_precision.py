"""Products of matrices keep all digits on GPUs, which else round float32 to 10 bits."""

import inspect
from pathlib import Path

import fuzz_calls
import jax
import jax.numpy as jnp
import pytest
from api import public

import jaxcal
from jaxcal import streaming

# do not multiply matrices, or only by functions that are marked
OTHERS = """explain load skce_interval streamed_check sbi.predictions sbi.repair_posterior
ckce.simplex_kernel ckce.skill dce.binned_ece dce.lower_distance dce.unbinned_ece
measures.confidences measures.ece measures.nll measures.pinball_loss measures.pit
measures.quantiles measures.with_temperature
squared_ce.reduce streaming.array_batches"""
ESTIMATES = "kccsd kce kcsd ksd skce.skce"  # by `jaxcal.fit.testing.estimate`
CALLS = ("calibration_test", "kccsd", "skce_test", "ucme_test", "repair")


def marked(function):
    decorators = inspect.getsource(inspect.unwrap(function)).split("def ")[0]
    return "@full_precision" in decorators or "@recorded" in decorators


def test_every_public_function_says_its_precision():
    others = {f"jaxcal.{name}" for name in (OTHERS + " " + ESTIMATES).split()}
    functions = {name: f for name, f in public().items() if inspect.isfunction(f)}
    plain = {name for name, f in functions.items() if not marked(f) and ".plots." not in name}
    assert plain == others


def test_there_is_one_mark():
    files = Path(jaxcal.__file__).parent.rglob("*.py")
    assert [f.name for f in files if "matmul_precision" in f.read_text()] == ["numerics.py"]


@pytest.fixture
def rounded(monkeypatch):
    """Products that a device may compute in reduced precision: shapes, added as they are traced."""
    shapes, product = [], jax.lax.dot_general_p
    bind = product.bind

    def recording(left, right, *, precision, **rest):
        full = precision is not None and set(precision) == {jax.lax.Precision.HIGHEST}
        if jnp.issubdtype(left.dtype, jnp.inexact) and not full:
            shapes.append((left.shape, right.shape))
        return bind(left, right, precision=precision, **rest)

    monkeypatch.setattr(product, "bind", recording)
    jax.clear_caches()  # what was traced before is not traced again
    return shapes


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_products_of_a_test_are_in_full_precision(rounded, name):
    getattr(jaxcal, name)(**fuzz_calls.recipes()[""][name])
    assert rounded == []


@pytest.mark.slow
def test_products_of_a_stream_are_in_full_precision(rounded):
    batch = fuzz_calls.DENSITIES, fuzz_calls.YS
    for test in (
        streaming.StreamedTest.calibration(0, *batch),
        streaming.StreamedTest.kccsd(0, *batch, features=jaxcal.RandomFeatures(1, 4)),
    ):
        test.result(test.update(test.empty(), *batch))
    assert rounded == []


def test_a_product_without_the_mark_is_noticed(rounded):
    jnp.ones((2, 3)) @ jnp.ones((3, 2))
    assert rounded == [((2, 3), (3, 2))]
