"""Writers of the KV cache: a correct one passes drawn cases, and every kind of wrong write is seen."""

from typing import Any

import pytest
import torch
from msgspec.structs import replace
from small_cases import HEADS, drawn_for, lighter, passed, run, step
from writers import CAN, STORE, wrong

from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels.arguments.edges import UNSAID_FACTORS
from attnfuzz.kernels.cache_writes.stored import Conversion
from attnfuzz.kernels.cache_writes.writer_backend import WRITES, WriterBackend
from attnfuzz.reference.case import (
    Case,
    Launch,
    Mode,
    Outputs,
    PaddedSlot,
    PageOrder,
    Pages,
    ValueFamily,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

LAYER = replace(HEADS, kv_layout=KvLayout.NHD)
EXTEND = Case(backend="", geometry=LAYER, steps=(step(Mode.EXTEND, (3, 7), (2, 2)),))
PADDED = replace(EXTEND, steps=(step(Mode.DECODE, (1, 5), (1, 3), rows=4),), padded_slot=PaddedSlot.NOWHERE)


def only_failure(case: Case, backend: WriterBackend) -> Observation:
    (failure,) = run(case, backend).failures
    return failure


def test_a_correct_writer_passes_drawn_cases_of_all_kinds() -> None:
    found = lighter(drawn_for(CAN, 40, seed=3))
    for case in found:
        passed(case, STORE)
    assert {case.padded_slot for case in found} == set(CAN.padded_slots)
    assert any(case.values is ValueFamily.EXTREME for case in found)
    assert any(case.pages.order is PageOrder.SHARED_PREFIX for case in found)
    assert any(each.launch is Launch.REPLAY for case in found for each in case.steps)


def test_a_token_that_is_not_written_is_unwritten() -> None:
    def shorter(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments | {each: arguments[each][:-1] for each in ("key", "value", "slot_mapping")}

    first, second = run(EXTEND, wrong("shorter", shorter)).failures
    assert (first.kind, first.place, second.place) == (Kind.UNWRITTEN, "k_cache", "v_cache")
    assert first.row is not None
    assert (first.row.request, first.row.token) == (1, 1)
    assert "slot 1, head 0, element 0 holds nan, its old value; token 1 of request 1 has" in first.message


def test_a_wrong_value_names_the_token_that_has_it() -> None:
    def swapped(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments | {"value": arguments["value"].flip(0)}

    failure = only_failure(EXTEND, wrong("swapped", swapped))
    assert (failure.kind, failure.place) == (Kind.WRITE_MISMATCH, "v_cache")
    assert "the value of token 1 of request 1 in head 0; token 0 of request 0 has" in failure.message


@pytest.mark.parametrize("outputs", Outputs)
def test_a_write_elsewhere_is_stray(outputs: Outputs) -> None:
    def padded_to_a_page(arguments: dict[str, Any]) -> dict[str, Any]:
        slots = arguments["slot_mapping"]
        return arguments | {"slot_mapping": torch.where(slots < 0, 5, slots)}

    first, second = run(replace(PADDED, outputs=outputs), wrong("padded_to_a_page", padded_to_a_page)).failures
    assert (first.kind, first.place, second.place) == (Kind.STRAY_WRITE, "k_cache", "v_cache")
    assert "page 1, slot 1, head 0, element 0 changed from" in first.message
    assert "no new token belongs there" in first.message


def test_padded_tokens_may_go_to_the_dummy_slot_alone() -> None:
    dummy = replace(PADDED, padded_slot=PaddedSlot.DUMMY)
    passed(dummy, STORE)

    def next_slot(arguments: dict[str, Any]) -> dict[str, Any]:
        slots = arguments["slot_mapping"]
        return arguments | {"slot_mapping": torch.where(slots == 0, 1, slots)}

    assert {each.kind for each in run(dummy, wrong("next_slot", next_slot)).failures} == {Kind.STRAY_WRITE}


def test_a_writer_that_may_give_nan_for_large_numbers_may_saturate_too() -> None:
    fp8 = replace(EXTEND, geometry=replace(LAYER, kv_dtype=DType.FLOAT8_E4M3), values=ValueFamily.EXTREME)
    passed(fp8, WriterBackend(STORE.function, CAN, Conversion(saturates=False)))


def test_a_write_beyond_2_to_the_31_elements_is_judged_like_any_other() -> None:
    far = replace(EXTEND, pages=Pages(hole=1 << 24))
    passed(far, STORE)

    def later(arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments | {"slot_mapping": arguments["slot_mapping"] + 1}

    failures = run(far, wrong("later", later)).failures
    assert {each.kind for each in failures} == {Kind.WRITE_MISMATCH, Kind.STRAY_WRITE}
    assert any("page 16777218" in each.message for each in failures), failures


def test_a_replay_writes_the_tokens_of_its_own_batch() -> None:
    capture = step(Mode.DECODE, stride=1, rows=4, launch=Launch.CAPTURE)
    replays = [step(Mode.DECODE, *lengths, rows=4, launch=Launch.REPLAY) for lengths in (((1, 5), (1, 3)), ((1, 9),))]
    graphed = replace(PADDED, steps=(capture, *replays))
    passed(graphed, STORE)

    kept: list[torch.Tensor] = []

    def of_the_first_replay(arguments: dict[str, Any]) -> dict[str, Any]:
        kept.append(kept[0] if kept else arguments["slot_mapping"].clone())
        return arguments | {"slot_mapping": kept[-1]}

    failures = run(graphed, wrong("of_the_first_replay", of_the_first_replay)).failures
    assert {failure.step for failure in failures} == {2}


def test_a_writer_that_attends_is_refused() -> None:
    with pytest.raises(ValueError, match="the capability is one of attention"):
        WriterBackend(STORE.function, capability=replace(WRITES, writes=False))
    with pytest.raises(ValueError, match="has neither sinks nor soft caps"):
        replace(WRITES, sinks=True)


def test_a_writer_has_no_scales_of_zero() -> None:
    with pytest.raises(ValueError, match="divides by its scales"):
        replace(WRITES, edges=UNSAID_FACTORS)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"windows": True}, "a window means nothing to a writer"),
        ({"window_tail": True}, "for a writer of the KV cache with tombstones"),
    ],
)
def test_windows_of_a_writer_are_those_of_its_pool(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(WRITES, **wrong)
