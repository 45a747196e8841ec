"""What the judge must see, however small."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.interface.backend import Attended, Output
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.contract import Contract, LseBase


def without_keys(output: Output, dropped: slice) -> tuple[Attended, ...]:
    """What a kernel that drops some keys attends to."""
    kept = []
    for entry in output.attended:
        keep = torch.ones(entry.key.shape[0], dtype=torch.bool)
        keep[dropped] = False
        kept.append(replace(entry, key=entry.key[keep], value=entry.value[keep]))
    return tuple(kept)


def run_on(layer: Any, attended: tuple[Attended, ...]) -> torch.Tensor:
    parts = [layer._attend(entry.query.float(), entry.key.float(), entry.value.float())[0] for entry in attended]
    return torch.cat(parts).to(layer.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("probabilities", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [ValueFamily.NORMAL, ValueFamily.ONE_HOT, ValueFamily.ZEROS])
def test_one_dropped_page_of_256_is_seen(layer: Any, family: ValueFamily, probabilities: torch.dtype) -> None:
    variant = replace(layer, lengths=((1, 4096),), family=family, probabilities=probabilities, tile=128)
    output = variant.run()
    wrong = run_on(variant, without_keys(output, slice(160, 176)))
    assert variant.only(replace(output, out=wrong)).kind is Kind.OUTPUT_MISMATCH


@pytest.mark.parametrize("family", [ValueFamily.NORMAL, ValueFamily.PEAKED, ValueFamily.ONE_HOT, ValueFamily.ZEROS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_missing_token_of_64_is_seen(layer: Any, family: ValueFamily, dtype: torch.dtype) -> None:
    variant = replace(layer, lengths=((1, 64),) * 3, family=family, dtype=dtype, probabilities=torch.bfloat16)
    output = variant.run()
    wrong = run_on(variant, without_keys(output, slice(0, 1)))
    assert variant.only(replace(output, out=wrong)).kind is Kind.OUTPUT_MISMATCH


def test_an_output_of_zeros_is_seen_where_a_fixed_tolerance_is_blind(layer: Any) -> None:
    variant = replace(layer, lengths=((1, 8192),), family=ValueFamily.ZEROS, tile=128)
    output = variant.run()
    zeros = torch.zeros_like(output.out)
    assert torch.allclose(zeros.float(), output.out.float(), atol=5e-2)
    assert variant.only(replace(output, out=zeros)).kind is Kind.OUTPUT_MISMATCH


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_output_that_is_one_percent_too_large_is_seen(layer: Any, dtype: torch.dtype) -> None:
    variant = replace(layer, dtype=dtype, probabilities=torch.bfloat16)
    output = variant.run()
    wrong = (output.out.float() * 1.01).to(dtype)
    assert variant.only(replace(output, out=wrong)).kind is Kind.OUTPUT_MISMATCH


def test_two_heads_that_are_swapped_are_seen_and_named(layer: Any) -> None:
    output = layer.run()
    wrong = output.out.clone()
    wrong[3, [4, 5]] = wrong[3, [5, 4]]
    found = layer.only(replace(output, out=wrong))
    assert "request 2 (q_len 2, kv_len 33), token 1, head" in found.message
    assert "2 of 40 rows are wrong" in found.message


@pytest.mark.parametrize("relative", [0.9, 1.6])
def test_one_element_fails_above_its_rounding_and_not_below(layer: Any, relative: float) -> None:
    """With fp32 weights, a bf16 output is its exact value rounded once: half a unit in the last place, no more."""
    output = layer.run()
    exact = replace(layer, dtype=torch.float32)
    reference = run_on(exact, output.attended)[0, 0, 0].item()
    step = 2.0 ** (math.floor(math.log2(abs(reference))) - 7)
    noise_free = replace(output, out=output.out.clone())
    mantissa = abs(reference) / 2.0 ** math.floor(math.log2(abs(reference)))
    allowed = step / 2 * mantissa
    noise_free.out[0, 0, 0] = reference + relative * allowed
    off = abs(noise_free.out[0, 0, 0].item() - reference) / allowed
    failed = layer.judged(noise_free).observations != ()
    assert failed == (off > 1.01)


def test_errors_too_small_for_one_element_are_seen_over_a_row(layer: Any) -> None:
    variant = replace(layer, dim=128, probabilities=torch.bfloat16, lengths=((1, 64),), dtype=torch.float32)
    output = variant.run()
    signs = torch.randn(output.out.shape, generator=torch.Generator().manual_seed(0)).sign()
    power = sum(entry.value.float().square().mean() / 64 for entry in output.attended)
    wrong = output.out + signs * power**0.5 * 2.0**-8 * 2.5
    found = variant.only(replace(output, out=wrong))
    assert found.tier == "T2"
    assert found.margin is not None
    assert found.margin > 1
    slight = output.out + signs * power**0.5 * 2.0**-8 * 0.2
    assert variant.judged(replace(output, out=slight)).observations == ()


def test_an_lse_in_the_other_base_is_found_and_named(layer: Any) -> None:
    output = layer.run()
    assert output.lse is not None
    found = layer.only(replace(output, lse=output.lse * math.log(2)))
    assert found.kind is Kind.LSE_MISMATCH
    assert "all are right in base e" in found.message
    natural = Contract(lse=LseBase.E)
    assert layer.judged(replace(output, lse=output.lse * math.log(2)), natural).observations == ()
    assert "all are right in base 2" in layer.only(output, natural).message


@pytest.mark.parametrize(("relative", "fails"), [(1e-7, False), (1e-5, True)])
def test_an_lse_is_judged_to_a_few_fp32_roundings(layer: Any, relative: float, fails: bool) -> None:
    output = layer.run()
    assert output.lse is not None
    found = layer.judged(replace(output, lse=output.lse * (1 + relative))).observations
    assert [observation.kind for observation in found] == [Kind.LSE_MISMATCH] * fails


def test_an_lse_is_not_judged_without_a_base(layer: Any) -> None:
    output = layer.run()
    assert output.lse is not None
    assert layer.judged(replace(output, lse=output.lse * 2), Contract()).observations == ()
