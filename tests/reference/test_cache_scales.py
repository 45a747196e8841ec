"""Scales finer than a tensor: drawn for each head or token, and products that keep the values of exact families."""

import pytest
import torch

from attnfuzz.reference.cache_scales import dequantised, draw_scales, quantised
from attnfuzz.reference.case import Granularity, ValueFamily
from attnfuzz.reference.chance import TokenRun
from attnfuzz.reference.values import Operand, draw

FINER = [Granularity.HEAD, Granularity.TOKEN_HEAD]


def scales(
    granularity: Granularity,
    *tokens: int,
    family: ValueFamily = ValueFamily.NORMAL,
    role: Operand = Operand.KEY,
) -> torch.Tensor:
    runs = [TokenRun(stream, count) for stream, count in enumerate(tokens)]
    return draw_scales(family, role, granularity, runs, 3, seed=7)


def test_scales_of_heads_are_the_same_for_all_tokens() -> None:
    drawn = scales(Granularity.HEAD, 4, 2)
    assert drawn.shape == (6, 3, 1)
    assert drawn.equal(drawn[:1].expand(6, 3, 1))
    assert len(set(drawn[0, :, 0].tolist())) == 3


def test_each_token_and_head_has_a_scale_that_further_tokens_leave_alone() -> None:
    drawn = scales(Granularity.TOKEN_HEAD, 4, 2)
    assert len(set(drawn.flatten().tolist())) == 18
    assert drawn[:3].equal(scales(Granularity.TOKEN_HEAD, 3, 2)[:3])


@pytest.mark.parametrize("granularity", FINER)
def test_keys_and_values_have_scales_of_their_own(granularity: Granularity) -> None:
    assert not scales(granularity, 4).equal(scales(granularity, 4, role=Operand.VALUE))


@pytest.mark.parametrize("granularity", [Granularity.TENSOR, Granularity.BLOCK])
def test_scales_of_tensors_and_blocks_are_not_drawn(granularity: Granularity) -> None:
    with pytest.raises(ValueError, match=f"scales of a {granularity} are not drawn"):
        scales(granularity, 1)


@pytest.mark.parametrize("family", [ValueFamily.PROBE, ValueFamily.ZEROS, ValueFamily.ONE_HOT])
@pytest.mark.parametrize("granularity", FINER)
def test_products_keep_the_values_of_families_with_exact_answers(family: ValueFamily, granularity: Granularity) -> None:
    values = draw(family, Operand.VALUE, (40, 3, 16), seed=1, stream=0).to(torch.float8_e4m3fn).float()
    drawn = scales(granularity, 40, family=family)
    assert dequantised(quantised(values, drawn), drawn).equal(values)


def test_products_of_other_values_are_rounded_to_fp32() -> None:
    values = torch.randn(40, 3, 16)
    drawn = scales(Granularity.TOKEN_HEAD, 40)
    stored = quantised(values, drawn)
    assert dequantised(stored, drawn).equal((stored.double() * drawn.double()).float())
    torch.testing.assert_close(dequantised(stored, drawn), values, rtol=2.0**-4, atol=2.0**-5)
