"""A message that states an expectation states the reference's value for its row, and the value that was found."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.reference.attention import attend
from attnfuzz.reference.contract import Contract, Holds, LseBase
from attnfuzz.reference.problem import Answer, Problem

LENGTHS = ((1, 50), (1, 0), (3, 2))
ROW = 1
"""The row without keys, beside the first row of the request with 3 queries and 2 keys."""

SINKS = torch.linspace(-2, 2, 8)
PERMISSIVE = Contract(lse=LseBase.TWO, empty_rows=Holds.FINITE, sources={"empty_rows": "a docstring"})


def due(layer: Any, output: Output) -> Answer:
    """The reference's answer; its LSE in base 2."""
    query, key, value = (
        torch.cat([getattr(each, name) for each in output.attended]) for name in ("query", "key", "value")
    )
    q_lens, kv_lens = zip(*layer.lengths, strict=True)
    problem = Problem(query, key, value, q_lens, kv_lens, output.bmm1_scale, output.bmm2_scale, sinks=output.sinks)
    answer = attend(problem)
    return replace(answer, lse=answer.lse / math.log(2))


def wrong_out(output: Output) -> None:
    output.out[0, 2, 5] += 3


def wrong_lse(output: Output) -> None:
    assert output.lse is not None
    output.lse[0, 2] += 1


def numbers(found: Observation) -> tuple[float, float]:
    """The number that was found, and the one that was expected."""
    seen, expected = re.search(r"([-\w.+]+) instead of ([-\w.+]+)", found.message).groups()  # type: ignore[union-attr]
    return float(seen), float(expected.rstrip(","))


@pytest.mark.parametrize("sinks", [None, SINKS], ids=["no sinks", "sinks"])
@pytest.mark.parametrize(
    ("break_it", "kind"), [(wrong_out, Kind.OUTPUT_MISMATCH), (wrong_lse, Kind.LSE_MISMATCH)], ids=["out", "lse"]
)
def test_a_mismatch_states_the_references_value(
    layer: Any, sinks: torch.Tensor | None, break_it: Callable[[Output], None], kind: Kind
) -> None:
    variant = replace(layer, lengths=LENGTHS, sinks=sinks)
    output = variant.run()
    break_it(output)
    found = variant.only(output)
    assert found.kind is kind
    assert "token 0, head 2" in found.message
    assert output.lse is not None
    answer, at = due(variant, output), (0, 2, 5)
    here = (output.out[at], answer.out[at]) if kind is Kind.OUTPUT_MISMATCH else (output.lse[0, 2], answer.lse[0, 2])
    assert numbers(found) == pytest.approx([each.item() for each in here], rel=1e-5)


@pytest.mark.parametrize("base", LseBase)
def test_an_lse_is_stated_in_the_base_of_the_contract(layer: Any, base: LseBase) -> None:
    output = layer.run()
    assert output.lse is not None
    in_base = output.lse if base is LseBase.TWO else output.lse * math.log(2)
    wrong = in_base.clone()
    wrong[0, 2] += 1
    found = layer.only(replace(output, lse=wrong), Contract(lse=base))
    assert numbers(found) == pytest.approx((wrong[0, 2].item(), in_base[0, 2].item()), abs=1e-4)


@pytest.mark.parametrize("base", LseBase)
def test_a_row_without_keys_is_expected_to_hold_its_sink(layer: Any, base: LseBase) -> None:
    variant = replace(layer, lengths=LENGTHS, sinks=SINKS)
    output = variant.run()
    assert output.lse is not None
    lse = output.lse if base is LseBase.TWO else output.lse * math.log(2)
    lse[ROW, 3] = -math.inf
    found = variant.only(replace(output, lse=lse), Contract(lse=base))
    sink = SINKS[3].item() / (math.log(2) if base is LseBase.TWO else 1)
    assert found.kind is Kind.EMPTY_ROW
    expected = (
        f"must hold out = 0, lse = {sink:.8g} (that of its sink, base {base}), but holds out[0] = 0.0, lse = -inf;"
    )
    assert expected in found.message
    assert due(variant, output).lse[ROW, 3].item() == pytest.approx(SINKS[3].item() / math.log(2))


@pytest.mark.parametrize(
    ("contract", "expected"),
    [
        (Contract(lse=LseBase.TWO), "must hold out = 0, lse = -inf, but holds out[0] = nan, lse = -inf;"),
        (Contract(), "must hold out = 0, but holds out[0] = nan;"),
        (
            PERMISSIVE,
            "must hold finite numbers in out, and a finite number or -inf in lse, but holds out[0] = nan, lse = -inf;",
        ),
    ],
    ids=["strict", "no LSE", "finite"],
)
def test_the_message_on_an_empty_row_states_the_value_that_the_contract_expects(
    layer: Any, contract: Contract, expected: str
) -> None:
    variant = replace(layer, lengths=LENGTHS)
    output = variant.run()
    output.out[ROW] = math.nan
    found = variant.only(output if contract.lse else replace(output, lse=None), contract)
    assert found.kind is Kind.EMPTY_ROW
    assert expected in found.message


def test_other_kinds_state_the_value_that_was_found(layer: Any) -> None:
    output = layer.run()
    output.out[2, 1] = math.inf
    assert "head 1 was not finite: it holds inf;" in layer.only(output).message
    misshapen = replace(output, out=output.out[:, :, :-1])
    assert f"expected {output.out.dtype} [rows, 8, 64]" in layer.only(misshapen).message
