"""Whose fault it is, by evidence that is made up: what planted bugs rarely show."""

from typing import Any

import pytest
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.backends import registry
from attnfuzz.harness.family import family_with
from attnfuzz.harness.triage.culprit import Culprit, culprit
from attnfuzz.harness.triage.evidence import BrokenDuty, CallEvidence, JudgedCall
from attnfuzz.harness.triage.result import VariantOutcome
from attnfuzz.harness.verdict.blame import Blame
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.kernels.meaning import Breach
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.reference.arguments import ArgumentForm, ArgumentRule
from attnfuzz.reference.calls import Argument, Call, CallCase, View
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.recurrent.case import StateCase
from attnfuzz.reference.sparse.case import SparseCase

DECODE, MERGE = NATIVE.decode.name, NATIVE.merge_state_in_place.name
CASE = decode_case("trtllm_mha")
CALLS = CallCase(backend="trtllm_mha", buffers=(), calls=(Call(op=DECODE, arguments={}), Call(op=MERGE, arguments={})))
PASSES = VariantOutcome.of(Verdict())


def failure(kind: Kind, kernel: str = DECODE, margin: float | None = None) -> Observation:
    return Observation(kind=kind, place="out", message="what it was", kernel=kernel, call=0, margin=margin)


def attend(**_: object) -> None:
    """Stand in for a kernel of one's own."""


def fails(seen: Observation) -> VariantOutcome:
    return VariantOutcome.of(Verdict(observations=(seen,)))


def sent(seen: Observation, **evidence: Any) -> Culprit:
    return culprit(CASE, seen, [CallEvidence(**{"calls": CALLS, "alone": fails(seen), **evidence})])


OBEYED = (JudgedCall(0, None, CALLS),)


@pytest.mark.parametrize("kind", [Kind.ILLEGAL_ACCESS, Kind.HANG, Kind.CANARY_OVERWRITTEN, Kind.INPUT_MUTATED])
def test_no_legal_call_may_end_with_a_fault(kind: Kind) -> None:
    found = sent(failure(kind), elsewhere={"other": PASSES})
    assert found.fault is Blame.KERNEL
    assert found.conclusion.endswith(f"meets every known precondition, but fails: {kind}.")
    assert found.sentences == ("The same calls on the kernels of other pass.",)


def test_a_fault_shared_by_other_kernels_leaves_the_blame_unclear() -> None:
    seen = failure(Kind.ILLEGAL_ACCESS)
    assert sent(seen, elsewhere={"other": fails(seen)}).fault is Blame.UNCLEAR
    assert sent(seen, elsewhere={"other": fails(failure(Kind.HANG))}).fault is Blame.KERNEL


def test_a_fault_that_the_calls_alone_do_not_show_leaves_the_blame_unclear() -> None:
    assert sent(failure(Kind.ILLEGAL_ACCESS), alone=PASSES).fault is Blame.UNCLEAR


def test_a_fault_of_an_unknown_kernel_leaves_the_blame_unclear() -> None:
    assert sent(failure(Kind.ILLEGAL_ACCESS, "attend")).fault is Blame.UNCLEAR


@pytest.mark.parametrize("kind", Kind)
def test_a_function_that_attnfuzz_calls_as_documented_is_at_fault(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    monkeypatch.setattr(registry, "resolve", lambda _: FunctionBackend(attend))
    case = replace(CASE, backend="mine.py:ATTEND")
    found = culprit(case, failure(kind, "attend"), [CallEvidence()])
    assert found.fault is Blame.KERNEL
    assert found.conclusion.startswith("The kernel is at fault: attend gets its arguments from attnfuzz")
    unsaid = Capability(arguments=(ArgumentRule(ArgumentForm.OUT_GAPS),))
    monkeypatch.setattr(registry, "resolve", lambda _: FunctionBackend(attend, unsaid))
    assert culprit(case, failure(kind, "attend"), []).fault is Blame.KERNEL
    open_question = culprit(replace(case, arguments=(ArgumentForm.OUT_GAPS,)), failure(kind, "attend"), [])
    assert open_question.fault is Blame.UNCLEAR
    assert open_question.conclusion == "Undecided: no document of attend says that it takes output with gaps."
    monkeypatch.setattr(registry, "resolve", lambda _: FunctionBackend(attend, arrange=lambda **_: {}))
    arranged = culprit(case, failure(kind, "attend"), [])
    assert arranged.fault is Blame.UNCLEAR
    assert arranged.conclusion.startswith("Undecided: attend or arrange, which makes its arguments")
    before = culprit(case, failure(kind, ""), [])
    assert "the function that arranges the arguments of mine.py:ATTEND" in before.conclusion


@pytest.mark.parametrize(("kind", "name"), [(SparseCase, "native:sparse"), (StateCase, "native:gated_delta_rule")])
def test_an_op_of_another_family_is_at_fault_as_a_function_is(kind: type[Any], name: str) -> None:
    (case, *_) = family_with(registry.resolve(name).capability).plain_cases(registry.resolve(name).capability, name)
    assert type(case) is kind
    found = culprit(case, failure(Kind.OUTPUT_MISMATCH, "an_op"), [])
    assert (found.fault, "an_op gets its arguments from attnfuzz" in found.conclusion) == (Blame.KERNEL, True)


def test_a_broken_precondition_takes_precedence_and_that_of_the_failing_call_first() -> None:
    breaches = tuple(BrokenDuty(call, Breach(("seq_lens",), f"wrong in {call}", "a docstring")) for call in (1, 0))
    found = sent(failure(Kind.ILLEGAL_ACCESS), breaches=breaches, asked=(JudgedCall(0, failure(Kind.HANG), CALLS),))
    assert (found.fault, found.call) == (Blame.CALLER, 0)
    assert found.sentences == ("wrong in 0 (a docstring)",)


def test_the_engines_line_that_requested_a_wrong_argument_is_named() -> None:
    views: dict[str, Argument] = {
        name: View(buffer=buffer, shape=(1,), stride=(1,))
        for name, buffer in (("seq_lens", "planner.py:7_2"), ("out", "planner.py:9"), ("query", "query"))
    }
    calls = replace(CALLS, calls=(Call(op=DECODE, arguments=views),))
    broken = BrokenDuty(0, Breach(("seq_lens", "query"), "wrong", "a docstring"))
    found = sent(failure(Kind.ILLEGAL_ACCESS), calls=calls, breaches=(broken,))
    assert found.sentences == ("wrong (a docstring)", "seq_lens is in memory that planner.py:7 requested.")


@pytest.mark.parametrize(
    ("seen", "fault", "words"),
    [
        (failure(Kind.RAISED, ""), Blame.CALLER, "raised before any launch"),
        (failure(Kind.RAISED), Blame.KERNEL, "fails in a call that meets"),
        (failure(Kind.UNEXPECTED_REJECTION), Blame.KERNEL, "rejects a call that meets"),
        (failure(Kind.RAISED, "attend"), Blame.UNCLEAR, "of the arguments of attend is unknown"),
    ],
)
def test_an_exception_is_its_callers_or_its_kernels(seen: Observation, fault: Blame, words: str) -> None:
    found = sent(seen)
    assert found.fault is fault
    assert words in found.conclusion


def test_an_exception_behind_calls_that_pass_by_themselves_is_the_callers() -> None:
    found = sent(failure(Kind.RAISED), alone=PASSES)
    assert found.fault is Blame.CALLER
    assert found.conclusion.endswith("raised after its launches.")


def test_wrong_numbers_of_correct_kernels_are_blamed_on_the_caller_and_unjudged_calls_named() -> None:
    found = sent(failure(Kind.OUTPUT_MISMATCH), asked=OBEYED)
    assert (found.fault, found.call) == (Blame.CALLER, 0)
    assert f"The calls between them, {MERGE}, were not judged separately." in found.sentences[0]


def test_wrong_numbers_that_other_kernels_do_not_give_are_the_kernels() -> None:
    elsewhere = {"other": PASSES}
    assert sent(failure(Kind.OUTPUT_MISMATCH), asked=OBEYED, elsewhere=elsewhere).fault is Blame.KERNEL
    # Where the calls by themselves pass, that others do says nothing.
    assert sent(failure(Kind.OUTPUT_MISMATCH), alone=PASSES, asked=OBEYED, elsewhere=elsewhere).fault is Blame.CALLER


def test_other_bits_from_the_same_call_are_the_kernels() -> None:
    assert sent(failure(Kind.NONDETERMINISTIC)).fault is Blame.KERNEL


def test_other_bits_from_calls_that_are_right_are_the_kernels_and_wrong_numbers_are_not() -> None:
    assert sent(failure(Kind.METAMORPHIC_MISMATCH), asked=OBEYED).fault is Blame.KERNEL
    assert sent(failure(Kind.METAMORPHIC_MISMATCH, margin=3.0), asked=OBEYED).fault is Blame.CALLER
    assert sent(failure(Kind.METAMORPHIC_MISMATCH)).fault is Blame.UNCLEAR


def test_wrong_numbers_of_unjudgeable_calls_leave_the_blame_unclear_with_a_reason() -> None:
    found = sent(failure(Kind.OUTPUT_MISMATCH), obstacles=("call 0 can't be judged",))
    assert found.fault is Blame.UNCLEAR
    assert found.sentences == ("Call 0 can't be judged.",)


def test_a_case_made_of_calls_has_a_caller_without_a_name() -> None:
    seen = failure(Kind.RAISED, "")
    assert "the code that made the call" in culprit(CALLS, seen, []).conclusion
    assert "the planner of trtllm_mha" in culprit(CASE, seen, []).conclusion
