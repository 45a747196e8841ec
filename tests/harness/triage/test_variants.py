"""Other ways to run a case: each can exist, and a failure that changes in it depends on what differs."""

import pytest
from harness_cases import CALLS, decode_case
from msgspec.structs import replace
from small_cases import HEADS, drawn, step

from attnfuzz.harness.triage.repeats import Repeated
from attnfuzz.harness.triage.result import Variant, VariantOutcome
from attnfuzz.harness.triage.variants import Way, alone, contrasts, cut, replayed, ways
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.reference.calls import Buffer, CallCase, Drawn
from attnfuzz.reference.case import Case, Launch, Mode
from attnfuzz.reference.dtypes import DType


def chosen(case: Case | CallCase, what: str, step: int = -1) -> list[Way]:
    return [way for way in ways(case, step) if way.what == what]


@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla"])
def test_each_way_can_exist_or_says_why_not(backend: str) -> None:
    for case in drawn(backend, 20):
        for way in ways(case, len(case.steps) - 1):
            assert (way.case is None) == bool(way.reason)
            if way.case is not None:
                way.case.validate()
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
    case.validate()
    one = alone(case, 2)
    one.validate()
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


PASSES = Verdict()


def fails(kind: Kind = Kind.OUTPUT_MISMATCH) -> Verdict:
    return Verdict(observations=(Observation(kind=kind, place="out", message="wrong"),))


def variant(what: str, value: str, verdict: Verdict) -> Variant:
    return Variant(what=what, value=value, outcome=VariantOutcome.of(verdict))


ALWAYS = Repeated(fresh=(fails(), fails()), used=(fails(), fails()))
NOW_AND_THEN = Repeated(fresh=(fails(), PASSES), used=(fails(), PASSES))


def test_each_variation_that_makes_a_difference_has_a_sentence() -> None:
    said = list(
        contrasts(
            ALWAYS,
            [
                variant("outputs", "stale", fails(Kind.UNWRITTEN)),
                variant("launch", "eager", PASSES),
                variant("steps", "step 3 alone", PASSES),
                variant("contents", "seed 1", PASSES),
                variant("contents", "seed 2", fails()),
                variant("backend", "trtllm_mha", PASSES),
            ],
        )
    )
    assert said == [
        "With stale outputs, it ends with Unwritten: the result depends on the old contents of out.",
        "Launched eagerly, it passes: the failure depends on values that a graph freezes or does not refresh.",
        "Step 3 alone passes: the failure depends on earlier steps.",
        "With other contents, it ends differently in 1 of 2: the failure depends on values.",
        "The case passes on trtllm_mha.",
    ]


def test_equal_outcomes_and_skipped_variants_make_no_contrast() -> None:
    unsupported = Variant(what="launch", value="eager", outcome=VariantOutcome(reason="no step is replayed"))
    assert list(contrasts(ALWAYS, [variant("guard", "left", fails()), unsupported])) == []


def test_differences_made_by_a_race_are_not_reported() -> None:
    variants = [variant("guard", "left", PASSES), variant("backend", "trtllm_mha", PASSES)]
    assert list(contrasts(NOW_AND_THEN, variants)) == ["The case passes on trtllm_mha."]


def test_a_fault_on_one_side_only_is_an_overrun_of_that_side() -> None:
    runs = Repeated(fresh=(fails(Kind.ILLEGAL_ACCESS),) * 2, used=())
    (said,) = contrasts(runs, [variant("guard", "left", PASSES)])
    assert said == "With guards on the left, it passes: the stray access is detected on one side only."
