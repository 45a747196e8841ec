"""JAX's attention as backends: cases on them pass, known faults show, and stray accesses are seen."""

import math

import pytest
from library_cases import case_of, verdict_of

from attnfuzz.kernels.libraries.jax import JAX_BACKENDS, _rung
from attnfuzz.reference.case import Mode
from attnfuzz.reference.dtypes import DType

NAMES = [backend.name for backend in JAX_BACKENDS]


@pytest.mark.parametrize(("number", "rung"), [(1, 1), (2, 4), (4, 4), (5, 16), (300, 1024)])
def test_shapes_are_few(number: int, rung: int) -> None:
    assert _rung(number) == rung
    assert math.log(rung, 4) % 1 == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_ragged_decode_passes(name: str) -> None:
    """In a process: JAX starts threads, and keeps them."""
    pytest.importorskip("jax")
    assert not verdict_of(case_of(name, Mode.DECODE, (1, 20), (1, 3), page_size=16, dtype=DType.FLOAT32))


@pytest.mark.slow
def test_a_request_without_keys_gets_the_mean_of_all_values() -> None:
    """The finding jax-masked-rows."""
    pytest.importorskip("jax")
    name = "jax:dot_product_attention_residual"
    assert verdict_of(case_of(name, Mode.DECODE, (1, 0), (1, 3), page_size=16, dtype=DType.FLOAT32)) == ["EmptyRow"]
