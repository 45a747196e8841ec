"""Magnitudes of q, K and V: powers of two that leave logits as they are, within the range of the dtype."""

import pytest
import torch
from msgspec.structs import replace
from small_cases import HEADS, LATENTS

from attnfuzz.reference.case import Magnitude, Scales, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.magnitudes import at_magnitude, magnitudes_of
from attnfuzz.reference.values import Operand, draw

FAMILIES = [family for family in ValueFamily if len(magnitudes_of(HEADS, Scales(), family)) > 1]
OTHERS = [each for each in Magnitude if each is not Magnitude.PLAIN]


def drawn(family: ValueFamily, magnitude: Magnitude, role: Operand, dtype: DType) -> torch.Tensor:
    values = draw(family, role, (64, 2, 20), seed=3, stream=1)
    return at_magnitude(values, magnitude, role, dtype).to(dtype.torch_dtype).double()


def of_all(family: ValueFamily, magnitude: Magnitude, dtype: DType) -> list[torch.Tensor]:
    return [drawn(family, magnitude, role, dtype) for role in Operand]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("magnitude", OTHERS)
def test_logits_are_those_of_plain_numbers(family: ValueFamily, magnitude: Magnitude) -> None:
    for dtype in (DType.FLOAT32, DType.BFLOAT16):
        (query, key, _), (plain_query, plain_key, _) = (
            of_all(family, each, dtype) for each in (magnitude, Magnitude.PLAIN)
        )
        assert torch.equal((query * key).sum(dim=-1), (plain_query * plain_key).sum(dim=-1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16])
def test_no_number_leaves_the_range_of_its_dtype(family: ValueFamily, dtype: DType) -> None:
    for magnitude in OTHERS:
        assert all(each.isfinite().all() for each in of_all(family, magnitude, dtype))


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_large_and_tiny_keys_and_values_do_not_fit_fp16(dtype: DType) -> None:
    for role in (Operand.KEY, Operand.VALUE):
        assert drawn(ValueFamily.DISCRETE, Magnitude.LARGE, role, dtype).half().isinf().mean(dtype=torch.float) > 0.9
        assert (drawn(ValueFamily.DISCRETE, Magnitude.TINY, role, dtype).half() == 0).all()


@pytest.mark.parametrize(("dtype", "normal"), [(DType.BFLOAT16, 2.0**-126), (DType.FLOAT16, 2.0**-14)])
def test_a_mixed_row_has_large_tiny_and_subnormal_elements(dtype: DType, normal: float) -> None:
    sizes = drawn(ValueFamily.NORMAL, Magnitude.MIXED, Operand.VALUE, dtype).abs().amax(dim=0)[0]
    assert sizes.max() > 2**7
    assert sizes.min() < 8 * normal
    values = drawn(ValueFamily.NORMAL, Magnitude.MIXED, Operand.VALUE, dtype).abs()
    assert ((values > 0) & (values < normal)).any()


def test_quantised_caches_scales_latents_and_numbers_of_writers_limit_magnitudes() -> None:
    normal, plain = ValueFamily.NORMAL, (Magnitude.PLAIN,)
    fp8 = replace(HEADS, dtype=DType.BFLOAT16, kv_dtype=DType.FLOAT8_E4M3)
    assert magnitudes_of(HEADS, Scales(softmax=0.5), normal) == tuple(Magnitude)
    assert Magnitude.MIXED not in magnitudes_of(LATENTS, Scales(), normal)
    assert magnitudes_of(fp8, Scales(), normal) == plain
    assert magnitudes_of(HEADS, Scales(v=2.0), normal) == plain
    assert magnitudes_of(HEADS, Scales(), ValueFamily.EXTREME) == plain
