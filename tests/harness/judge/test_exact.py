"""T0: shapes, finite numbers, empty and padded rows."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnfuzz.harness.memory import poison
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.reference.contract import Contract, Holds, LseBase


def sentinel(dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(poison.sentinel(dtype).content(dtype.itemsize)), dtype=dtype)[0]


def padded(output: Output, fill: float | torch.Tensor) -> Output:
    """The same output with two more rows, of no request."""
    assert output.lse is not None
    rows = torch.zeros(2, *output.out.shape[1:], dtype=output.out.dtype)
    rows[1] = fill
    return replace(output, out=torch.cat((output.out, rows)), lse=torch.cat((output.lse, output.lse[:2])))


def permissive(*, empty_rows: Holds = Holds.ZERO, padded_rows: Holds = Holds.FINITE) -> Contract:
    sources = {"empty_rows": "a docstring", "padded_rows": "a header"}
    return Contract(lse=LseBase.TWO, empty_rows=empty_rows, padded_rows=padded_rows, sources=sources)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_element_that_was_never_written_is_reported_from_a_nan(layer: Any, dtype: torch.dtype) -> None:
    variant = replace(layer, dtype=dtype)
    for value, kind in ((sentinel(dtype), Kind.UNWRITTEN), (math.nan, Kind.NOT_FINITE), (math.inf, Kind.NOT_FINITE)):
        output = variant.run()
        output.out[1, 2, 3] = value
        found = variant.only(output)
        assert (found.kind, found.place, found.tier, found.step, found.mode) == (kind, "out", "T0", 3, "decode")
        assert "request 1 (q_len 1, kv_len 20), token 0, head 2" in found.message
        assert "1 of 40 such rows" in found.message


def test_an_lse_that_was_never_written_is_reported_from_a_nan(layer: Any) -> None:
    for value, kind in ((sentinel(torch.float32), Kind.UNWRITTEN), (math.nan, Kind.NOT_FINITE)):
        output = layer.run()
        assert output.lse is not None
        output.lse[1, 2] = value
        found = layer.only(output)
        assert (found.kind, found.place) == (kind, "lse")


def test_the_lse_of_no_keys_is_a_wrong_number_of_a_row_with_some(layer: Any) -> None:
    output = layer.run()
    assert output.lse is not None
    output.lse[1, 2] = -math.inf
    found = layer.only(output)
    assert (found.kind, found.place, found.tier) == (Kind.LSE_MISMATCH, "lse", "T0")
    assert "request 1 (q_len 1, kv_len 20), token 0, head 2: lse -inf, as for a row without keys" in found.message
    output.lse[0, 1] += 1
    found = layer.only(output)
    assert (found.kind, found.place, found.tier) == (Kind.LSE_MISMATCH, "lse", "T4")


def test_wrong_numbers_are_seen_beside_missing_ones(layer: Any) -> None:
    output = layer.run()
    output.out[0, 0, 0] = math.nan
    output.out[1] += 1
    kinds = {observation.kind for observation in layer.judged(output).observations}
    assert kinds == {Kind.NOT_FINITE, Kind.OUTPUT_MISMATCH}


@pytest.mark.parametrize("wrong", ["out", "lse", "unwritten"])
def test_a_row_that_sees_nothing_must_be_zero_without_weight(layer: Any, wrong: str) -> None:
    variant = replace(layer, lengths=((1, 5), (1, 0), (3, 2)))
    output = variant.run()
    assert output.lse is not None
    assert variant.judged(output).observations == ()
    if wrong == "out":
        output.out[1, 2, 3] = 0.5
    elif wrong == "lse":
        output.lse[2, 2] = 0.0
    else:
        output.out[1] = sentinel(output.out.dtype)
    found = variant.only(output)
    assert (found.kind, found.place) == (Kind.EMPTY_ROW, "empty rows")
    assert "of 16 such rows" in found.message
    assert ("never written" in found.message) == (wrong == "unwritten")


def test_a_row_that_sees_only_a_sink_has_its_lse(layer: Any) -> None:
    variant = replace(layer, lengths=((1, 5), (1, 0)), sinks=torch.linspace(-2, 2, 8))
    output = variant.run()
    assert output.lse is not None
    assert variant.judged(output).observations == ()
    output.lse[1] += 0.1
    assert variant.only(output).kind is Kind.LSE_MISMATCH
    output.lse[1] = -math.inf
    assert variant.only(output).kind is Kind.EMPTY_ROW


def test_an_lse_that_is_promised_must_be_there(layer: Any) -> None:
    output = replace(layer.run(), lse=None)
    found = layer.only(output)
    assert (found.kind, found.place, found.tier) == (Kind.LSE_MISMATCH, "lse", "T0")
    assert layer.judged(output, Contract()).observations == ()
    nothing = replace(output, attended=())
    assert layer.judged(nothing).observations == ()


def test_empty_rows_are_judged_by_the_contract(layer: Any) -> None:
    variant = replace(layer, lengths=((1, 5), (1, 0)))
    output = variant.run()
    output.out[1] = 0.5
    assert variant.judged(output, permissive(empty_rows=Holds.FINITE)).observations == ()
    output.out[1] = math.nan
    assert variant.only(output, permissive(empty_rows=Holds.FINITE)).kind is Kind.EMPTY_ROW
    assert variant.judged(output, permissive(empty_rows=Holds.ANYTHING)).observations == ()


@pytest.mark.parametrize(
    ("fill", "holds", "kind"),
    [
        (1.0, Holds.FINITE, None),
        (math.nan, Holds.FINITE, Kind.NOT_FINITE),
        (sentinel(torch.bfloat16), Holds.FINITE, Kind.UNWRITTEN),
        (0.0, Holds.ZERO, None),
        (1.0, Holds.ZERO, Kind.PADDING_LEAK),
        (math.nan, Holds.ANYTHING, None),
    ],
)
def test_padded_rows_are_judged_by_the_contract(
    layer: Any, fill: float | torch.Tensor, holds: Holds, kind: Kind | None
) -> None:
    found = layer.judged(padded(layer.run(), fill), permissive(padded_rows=holds)).observations
    assert [(observation.kind, observation.place) for observation in found] == [(kind, "padded rows")] * bool(kind)


def test_a_breach_of_the_strict_contract_alone_is_a_gap(layer: Any) -> None:
    variant = replace(layer, lengths=((1, 5), (1, 0)))
    output = padded(variant.run(), math.nan)
    output.out[1] = 0.5
    declared = permissive(empty_rows=Holds.FINITE)
    plain = variant.judged(output, declared).observations
    assert [(found.kind, found.gap) for found in plain] == [(Kind.NOT_FINITE, False)]
    strict = variant.judged(output, declared, strict=True).observations
    assert [(found.kind, found.gap) for found in strict] == [(Kind.NOT_FINITE, False), (Kind.EMPTY_ROW, True)]


def test_requests_may_lie_anywhere_in_the_output(layer: Any) -> None:
    output = layer.run()
    assert output.lse is not None
    first_rows = (7, 0, 4, 2)
    out, lse = torch.full((9, 8, 64), 2.0, dtype=torch.bfloat16), torch.zeros(9, 8)
    attended = []
    for entry, row in zip(output.attended, first_rows, strict=True):
        rows = slice(entry.first_row, entry.first_row + entry.query.shape[0])
        out[row : row + entry.query.shape[0]] = output.out[rows]
        lse[row : row + entry.query.shape[0]] = output.lse[rows]
        attended.append(replace(entry, first_row=row))
    moved = replace(output, out=out, lse=lse, attended=tuple(attended))
    judgement = layer.judged(moved)
    assert judgement.observations == ()
    assert judgement.rows == 40
    out[1] = math.nan
    assert layer.only(moved).place == "padded rows"


def test_a_batch_without_requests_has_only_padding(layer: Any) -> None:
    output = Output(torch.zeros(2, 8, 64, dtype=torch.bfloat16), None, (), 1.0, 1.0)
    assert layer.judged(output).observations == ()
    assert layer.judged(output).rows == 0
    output.out[0] = math.nan
    assert layer.only(output).place == "padded rows"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": torch.zeros(5, 8, 32, dtype=torch.bfloat16)}, r"out is torch.bfloat16 \[5, 8, 32\], expected"),
        ({"out": torch.zeros(5, 8, 64)}, r"out is torch.float32 \[5, 8, 64\], expected torch.bfloat16 \[rows, 8, 64\]"),
        ({"out": torch.zeros(4, 8, 64, dtype=torch.bfloat16)}, "out has 4 rows, but the requests' last row is 4"),
        ({"lse": torch.zeros(5, 4)}, r"lse is torch.float32 \[5, 4\], expected torch.float32 \[5, 8\]"),
        ({"lse": torch.zeros(5, 8, dtype=torch.float64)}, "lse is torch.float64"),
    ],
)
def test_an_output_of_another_form_is_reported(layer: Any, change: dict[str, torch.Tensor], message: str) -> None:
    found = layer.only(replace(layer.run(), **change))
    assert found.tier == "T0"
    assert re.search(message, found.message)
