"""Other ways to run a case: each can exist, and differs in what it says."""

import pytest
from harness_cases import CALLS, decode_case
from msgspec.structs import replace
from small_cases import HEADS, drawn, step

from attnfuzz.harness.triage.variants import Way, alone, cut, replayed, ways
from attnfuzz.reference.calls import Buffer, CallCase, Drawn
from attnfuzz.reference.case import Case, Launch, Mode
from attnfuzz.reference.case_file import validate_any
from attnfuzz.reference.dtypes import DType


def chosen(case: Case | CallCase, what: str, step: int = -1) -> list[Way]:
    return [way for way in ways(case, step) if way.what == what]


@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla"])
def test_each_way_can_exist_or_says_why_not(backend: str) -> None:
    for case in drawn(backend, 20):
        for way in ways(case, len(case.steps) - 1):
            assert (way.case is None) == bool(way.reason)
            if way.case is not None:
                validate_any(way.case)
                assert way.case != case


def test_an_eager_case_is_captured_on_padding_and_replayed() -> None:
    case = decode_case("trtllm_mha", 6, 9, padded=2)
    (way,) = chosen(case, "launch")
    assert isinstance(way.case, Case)
    assert [step.launch for step in way.case.steps] == [Launch.CAPTURE, Launch.REPLAY]
    assert way.case.steps[1].requests == case.steps[0].requests
    # And back.
    (back,) = chosen(way.case, "launch")
    assert back.case == case


def test_a_prefill_is_not_captured() -> None:
    case = Case(backend="trtllm_mha", geometry=HEADS, steps=(step(Mode.EXTEND, (2, 5)),))
    way = replayed(case)
    assert (way.case, way.reason) == (None, "a graph can't hold a step of extend")


def test_a_step_alone_keeps_the_graph_that_it_replays_and_numbers_its_slots_anew() -> None:
    capture = replace(step(Mode.DECODE, rows=2, launch=Launch.CAPTURE), requests=())
    first = step(Mode.DECODE, (1, 3), (1, 4), launch=Launch.REPLAY)
    last = replace(first, requests=first.requests[1:])
    case = Case(backend="trtllm_mha", geometry=HEADS, steps=(capture, first, last))
    validate_any(case)
    one = alone(case, 2)
    validate_any(one)
    assert [step.launch for step in one.steps] == [Launch.CAPTURE, Launch.REPLAY]
    assert [(each.slot, each.kv_len) for each in one.steps[1].requests] == [(0, 4)]
    assert [way.value for way in chosen(case, "steps", step=2)] == ["step 2 alone"]
    assert chosen(case, "steps", step=1) == []


def test_steps_behind_the_failing_one_are_cut_off_unless_slots_would_be_missing() -> None:
    steps = (step(Mode.DECODE, (1, 3)), step(Mode.DECODE, (1, 4), (1, 2)))
    case = Case(backend="trtllm_mha", geometry=HEADS, steps=steps)
    assert cut(case, 0).steps == steps[:1]
    later = replace(steps[0], requests=(replace(steps[0].requests[0], slot=1),))
    case = replace(case, steps=(later, steps[1]))
    assert cut(case, 0) == case


def test_calls_are_drawn_anew_where_their_contents_were_drawn() -> None:
    assert chosen(CALLS, "contents") == []
    buffer = Buffer(name="x", dtype=DType.FLOAT32, size=1, drawn=Drawn(seed=5))
    case = replace(CALLS, buffers=(buffer,))
    seeds = []
    for way in chosen(case, "contents"):
        assert isinstance(way.case, CallCase)
        drawn_anew = way.case.buffers[0].drawn
        assert drawn_anew is not None
        seeds.append(drawn_anew.seed)
    assert seeds == [6, 7, 8]
