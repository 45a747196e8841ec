"""Reported bugs are looked for on other kernels: with their own case, with that case moved, with drawn ones."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import builtin, resolve
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.reported.counterparts import cases_like, shown_on, without_bug
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.reference.case import Case, Scales
from attnfuzz.reference.validity import validate

BACKEND = "blackwell:trtllm_mha@21649-before"
PASSED = Verdict(rows=1)


def failing(kind: Kind) -> Verdict:
    return Verdict(observations=(Observation(kind=kind, place="out", message="1 instead of 2"),))


FAULT, MISMATCH = failing(Kind.ILLEGAL_ACCESS), failing(Kind.OUTPUT_MISMATCH)


def reported(name: str) -> Case:
    (case,) = (bug.case for bug in load_bugs() if bug.name == name)
    assert isinstance(case, Case)
    return case


@dataclass
class Judge(OneByOne):
    """Judges by a rule those that have the bug, and passes what has not; keeps what it was given."""

    rule: Callable[[Case], Verdict]
    seen: list[Case] = field(default_factory=list)

    def verdict(self, case: Case) -> Verdict:
        self.seen.append(case)
        return self.rule(case) if "@" in case.backend else PASSED

    def renew(self) -> None:
        """Nothing is kept from one case to the next."""


def movable() -> list[tuple[str, str]]:
    """Each reported bug that a revision of ours shows, with each of its counterparts on a GPU."""
    found = []
    for bug in load_bugs():
        family = [name for name in builtin() if ":" in name]
        found += [(bug.name, name) for name in family if name.partition(":")[2] == bug.backend_before]
    return found


@pytest.mark.parametrize(("name", "backend"), movable())
def test_a_reported_case_can_be_moved_to_each_counterpart(name: str, backend: str) -> None:
    case = reported(name)
    moved = cases_like(case, backend)
    assert moved
    assert len(set(moved)) == len(moved)
    for each in moved:
        validate(each)
        assert each.backend == backend
        assert resolve(backend).capability.why_not(each) is None
        assert [step.mode for step in each.steps] == [step.mode for step in case.steps]
        assert [step.launch for step in each.steps] == [step.launch for step in case.steps]
        assert any(step.padded for step in each.steps) == any(step.padded for step in case.steps)


def test_a_case_that_needs_no_other_geometry_stays_as_it_is() -> None:
    case = reported("sglang-21649")
    (same, *_) = cases_like(case, "trtllm_mha@21649-before")
    assert same.geometry == case.geometry
    assert same.views == case.views


def test_the_nearest_case_is_tried_first_and_run_without_the_bug_too() -> None:
    case = reported("sglang-21649")
    judge = Judge(lambda _: FAULT)
    shown = shown_on(BACKEND, case, (Kind.ILLEGAL_ACCESS,), judge)
    assert shown.remark == "its case, with a geometry that the backend supports"
    assert (shown.before, shown.after) == (FAULT, PASSED)
    nearest = cases_like(case, BACKEND)[0]
    assert [(each.backend, each.geometry) for each in judge.seen] == [
        (BACKEND, nearest.geometry),
        ("blackwell:trtllm_mha", nearest.geometry),
    ]


def test_the_fix_is_shown_as_served_where_more_is_known_to_fail() -> None:
    case = replace(cases_like(reported("sglang-24566"), "hopper:trtllm_mha")[0], backend="hopper:trtllm_mha@24566")
    assert without_bug(case) == "hopper:trtllm_mha_as_served"
    assert without_bug(replace(case, scales=Scales(v=0.5))) == "hopper:trtllm_mha"
    assert without_bug(replace(case, backend="blackwell:trtllm_mha@24566")) == "blackwell:trtllm_mha"


def test_an_unmoved_case_is_described_as_its_own() -> None:
    judge = Judge(lambda _: FAULT)
    shown = shown_on("trtllm_mha@21649-before", reported("sglang-21649"), (Kind.ILLEGAL_ACCESS,), judge)
    assert shown.remark == "its own case"


@pytest.mark.slow
def test_a_case_is_searched_for_where_the_reported_one_passes() -> None:
    case = reported("sglang-21649")
    own = set(cases_like(case, BACKEND))
    judge = Judge(lambda drawn: FAULT if drawn not in own and any(step.padded for step in drawn.steps) else PASSED)
    shown = shown_on(BACKEND, case, (Kind.ILLEGAL_ACCESS,), judge, examples=50)
    assert shown.remark == "a case found by a search"
    assert shown.before is not None
    assert shown.before.failures[0].kind is Kind.ILLEGAL_ACCESS
    assert shown.after == PASSED
    assert judge.seen[-1].backend == "blackwell:trtllm_mha"


@pytest.mark.slow
def test_a_failure_of_another_kind_is_passed_over() -> None:
    case = reported("sglang-21649")

    def rule(drawn: Case) -> Verdict:
        return MISMATCH if drawn.steps[0].padded else PASSED

    judge = Judge(rule)
    shown = shown_on(BACKEND, case, (Kind.ILLEGAL_ACCESS,), judge, examples=30)
    assert shown.remark == "neither its case nor any of 30 drawn cases fails as reported"
    assert shown.before == MISMATCH
    assert shown.after is None
    assert {each.backend for each in judge.seen} == {BACKEND}


def test_a_search_is_the_same_each_time() -> None:
    case = reported("sglang-21649")
    first, again = Judge(lambda _: PASSED), Judge(lambda _: PASSED)
    for judge in (first, again):
        shown_on(BACKEND, case, (Kind.ILLEGAL_ACCESS,), judge, examples=10)
    assert first.seen == again.seen
    assert len(first.seen) >= 10


@pytest.mark.parametrize(("verdict", "fixed"), [(FAULT, "native@fixed"), (MISMATCH, ""), (PASSED, "")])
def test_a_case_that_is_no_attention_is_run_alone(verdict: Verdict, fixed: str) -> None:
    (case,) = (bug.case_in_release for bug in load_bugs() if bug.name == "sglang-30570")
    assert case is not None
    judge = Judge(lambda _: verdict)
    shown = shown_on("native@broken", case, (Kind.ILLEGAL_ACCESS,), judge, after="native@fixed")
    assert (shown.before, shown.fixed) == (verdict, fixed)
    assert [each.backend for each in judge.seen] == ["native@broken", *([fixed] if fixed else [])]
