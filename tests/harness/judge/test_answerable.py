"""Requests whose inputs hold NaN or infinity: nothing to compare with, and no reason to let others pass."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.interface.backend import Attended, Output


def spoilt(output: Output, request: int, spoil: Callable[[Attended], object]) -> Output:
    """The output with other inputs of one request, and what a kernel may have made of them."""
    entry = output.attended[request]
    changed = Attended(entry.first_row, entry.query.clone(), entry.key.clone(), entry.value.clone())
    spoil(changed)
    attended = tuple(changed if at == request else each for at, each in enumerate(output.attended))
    rows = slice(entry.first_row, entry.first_row + entry.query.shape[0])
    output.out[rows] = math.nan
    assert output.lse is not None
    output.lse[rows] = math.nan
    return replace(output, attended=attended)


INPUTS = {
    "NaN in a query": lambda entry: entry.query[-1, 0, 0].fill_(math.nan),
    "infinity in a query": lambda entry: entry.query[-1, 0, 0].fill_(math.inf),
    "NaN in a key": lambda entry: entry.key[0, 0, 0].fill_(math.nan),
    "infinity in a key": lambda entry: entry.key[0, 0, 0].fill_(-math.inf),
    "NaN in a value": lambda entry: entry.value[0, 0, 0].fill_(math.nan),
    "infinity in a value": lambda entry: entry.value[0, 0, 0].fill_(math.inf),
}


@pytest.mark.parametrize("spoil", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("request_index", [0, 2, 3])
def test_a_request_with_inputs_that_are_not_finite_is_set_aside_and_counted(
    layer: Any, request_index: int, spoil: Callable[[Attended], object]
) -> None:
    judged = layer.judged(spoilt(layer.run(), request_index, spoil))
    assert judged.observations == ()
    rows = layer.lengths[request_index][0] * layer.q_heads
    assert judged.unanswered == rows
    assert judged.rows + rows == layer.judged(layer.run()).rows


@pytest.mark.parametrize("request_index", [0, 2, 3])
def test_other_requests_and_padding_are_judged_as_ever_and_named_by_their_numbers(
    layer: Any, request_index: int
) -> None:
    output = spoilt(layer.run(), request_index, INPUTS["NaN in a query"])
    output.out[1, 2, 3] += 1.0
    found = layer.only(output)
    assert found.kind is Kind.OUTPUT_MISMATCH
    assert "request 1 (q_len 1, kv_len 20), token 0, head 2" in found.message
    output = spoilt(layer.run(), request_index, INPUTS["NaN in a query"])
    assert output.lse is not None
    nan = torch.full_like(output.out[:1], math.nan)
    padded = replace(output, out=torch.cat((output.out, nan)), lse=torch.cat((output.lse, output.lse[:1])))
    assert layer.only(padded).message == "1 of 1 padded rows hold NaN or infinity"


@pytest.mark.parametrize("sink", [math.nan, math.inf])
def test_a_sink_that_is_no_number_leaves_no_request_with_an_answer(layer: Any, sink: float) -> None:
    variant = replace(layer, sinks=torch.tensor([sink] + [0.5] * (layer.q_heads - 1)))
    judged = variant.judged(variant.run())
    assert (judged.observations, judged.rows) == ((), 0)
    assert judged.unanswered == 5 * layer.q_heads


def test_a_sink_of_no_weight_is_a_number(layer: Any) -> None:
    variant = replace(layer, sinks=torch.full((layer.q_heads,), -math.inf))
    judged = variant.judged(variant.run())
    assert (judged.observations, judged.unanswered) == ((), 0)


def test_a_row_without_keys_has_an_answer(layer: Any) -> None:
    variant = replace(layer, lengths=((1, 0), (2, 1)))
    judged = variant.judged(variant.run())
    assert (judged.observations, judged.unanswered) == ((), 0)


def test_nan_from_finite_inputs_is_never_excused(layer: Any) -> None:
    output = layer.run()
    output.out[0] = math.nan
    assert layer.only(output).kind is Kind.NOT_FINITE
