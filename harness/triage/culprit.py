"""Conclude whose fault a failure is, from the evidence of its calls.

If a call breaks a precondition, its caller is at fault, whatever the kernel then does. If a call meets all of them, but
its result contradicts its arguments, the kernel is at fault. If the result of each call agrees with its arguments, but
the step is wrong, the caller passed wrong arguments.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnfuzz.harness.backends import registry
from attnfuzz.harness.calls.literal_buffers import requested_by
from attnfuzz.harness.triage.differences import Difference
from attnfuzz.harness.triage.evidence import BETWEEN, BrokenDuty, CallEvidence
from attnfuzz.harness.triage.result import VariantOutcome
from attnfuzz.harness.triage.writes import wrong_arguments
from attnfuzz.harness.verdict.blame import Blame
from attnfuzz.harness.verdict.failures import DAMAGES, DEATHS, Kind, Observation
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.interface.backend import called_as_documented
from attnfuzz.kernels.meaning.known import entry_points
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.arguments import ArgumentRule, ArgumentStanding
from attnfuzz.reference.calls import CallCase, named_views
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.edges import EdgeRule, edges_of

_OF_MEMORY = DEATHS | DAMAGES
"""Failures that need no reference: no legal call may end in them."""

_OF_WRITES = _OF_MEMORY | {Kind.WRITE_MISMATCH, Kind.STRAY_WRITE, Kind.UNWRITTEN}
"""Failures of a call that writes into a KV cache."""

_OF_EXCEPTIONS = frozenset({Kind.RAISED, Kind.UNEXPECTED_REJECTION})


@dataclass(frozen=True)
class Culprit:
    """A conclusion, the sentences that support it, and the broken preconditions or differing arguments behind it.

    `call` is the first bad call, -1 if unknown.
    """

    fault: Blame
    conclusion: str
    sentences: tuple[str, ...] = ()
    breaches: tuple[BrokenDuty, ...] = ()
    differences: tuple[Difference, ...] = ()
    call: int = -1


def culprit(case: AnyCase, failure: Observation, found: Sequence[CallEvidence]) -> Culprit:
    """Return the conclusion on a failure of a case, from the evidence on it, and on its related case if it has one."""
    caller = "the code that made the call" if isinstance(case, CallCase) else f"the planner of {case.backend}"
    for evidence in found:
        if evidence.breaches:
            return _broken(caller, failure, evidence)
        if evidence.inherited:
            return _inherited(evidence)
    if not isinstance(case, CallCase) and failure.kernel not in entry_points():
        backend = registry.resolve(case.backend)
        if called_as_documented(backend):
            arranges = bool(failure.kernel) and getattr(backend, "arranges", False)
            return _function(case, backend.capability, failure, found, arranges=arranges)
    if isinstance(case, Case) and failure.kernel not in entry_points() and failure.kind in _OF_WRITES:
        written = _written(caller, case, failure, found)
        if written is not None:
            return written
    if failure.kind in _OF_EXCEPTIONS:
        return _raised(caller, failure, found)
    for evidence in found:
        if evidence.wrong is not None:
            return _disobedient(evidence)
    if failure.kind in _OF_MEMORY:
        return _stray(failure, found)
    return _wrong(caller, failure, found)


def _broken(caller: str, failure: Observation, evidence: CallEvidence) -> Culprit:
    """Conclude from a precondition that the failing call, or one before it, breaks."""
    own = [each for each in evidence.breaches if each.call == failure.call] or list(evidence.breaches)
    call = own[0].call
    own = [each for each in own if each.call == call]
    op = _op(evidence, call)
    return Culprit(
        Blame.CALLER,
        f"The caller is at fault: {caller} breaks the contract of {op}.",
        (*(f"{each.breach.text} ({each.breach.source})" for each in own), *_requested(evidence, own)),
        tuple(own),
        call=call,
    )


def _requested(evidence: CallEvidence, broken: Sequence[BrokenDuty]) -> Iterator[str]:
    """Yield the lines of an engine that requested the memory of arguments that break a precondition."""
    assert evidence.calls is not None
    named = {name for each in broken for name in each.breach.arguments}
    views = named_views(evidence.calls.calls[broken[0].call].arguments)
    for name, line in dict.fromkeys((name, requested_by(view.buffer)) for name, view in views if name in named):
        if line:
            yield f"{name} is in memory that {line} requested."


def _inherited(evidence: CallEvidence) -> Culprit:
    """Conclude from a workspace that an earlier call left in a state that a later call can't use."""
    first = evidence.inherited[0]
    return Culprit(
        Blame.KERNEL,
        f"The kernel is at fault: an earlier call leaves a workspace that {_op(evidence, first.call)} can't use.",
        (
            *(each.breach.text for each in evidence.inherited),
            "The calls of an earlier step meet every known precondition and pass, but fail when they are made twice.",
        ),
        call=first.call,
    )


def _function(
    case: AnyCase, capability: Any, failure: Observation, found: Sequence[CallEvidence], *, arranges: bool
) -> Culprit:
    """Conclude from arguments that attnfuzz made itself, as the function's documentation says, as far as it does.

    If the user `arranges` them for the function, either may be at fault.
    """
    function = failure.kernel or f"the function that arranges the arguments of {case.backend}"
    unsaid = _unsaid(case, capability) if isinstance(case, Case) else []
    if unsaid:
        conclusion = f"Undecided: no document of {function} says that it takes {' and '.join(unsaid)}."
        return Culprit(Blame.UNCLEAR, conclusion, (_line(failure), *_elsewhere(found)), call=failure.call)
    if arranges:
        conclusion = f"Undecided: {function} or arrange, which makes its arguments of attnfuzz's, is at fault."
        return Culprit(Blame.UNCLEAR, conclusion, (_line(failure), *_elsewhere(found)), call=failure.call)
    return Culprit(
        Blame.KERNEL,
        f"The kernel is at fault: {function} gets its arguments from attnfuzz, as documented.",
        (_line(failure), *_elsewhere(found)),
        call=failure.call,
    )


def _written(caller: str, case: Case, failure: Observation, found: Sequence[CallEvidence]) -> Culprit | None:
    """Conclude from calls that write a step's new tokens, if their arguments are known."""
    for evidence in found:
        if evidence.calls is None or not 0 <= failure.step < len(case.steps):
            continue
        mistake = wrong_arguments(evidence.calls, case, case.steps[failure.step])
        if mistake:
            conclusion = f"The caller is at fault: {caller} passes wrong arguments to {failure.kernel}."
            return Culprit(Blame.CALLER, conclusion, (f"{mistake[0].upper()}{mistake[1:]}.",), call=failure.call)
        if mistake == "":
            conclusion = f"The kernel is at fault: {failure.kernel} gets the slots and values of the new tokens."
            return Culprit(Blame.KERNEL, conclusion, (_line(failure),), call=failure.call)
    return None


def _unsaid(case: Case, capability: Capability) -> list[str]:
    """Return the forms and edges of a case that no document of its function promises."""
    forms = [rule.form.value for rule in capability.arguments if rule.form in case.arguments and _is_unsaid(rule)]
    edges = edges_of(case)
    return [*forms, *(rule.edge.value for rule in capability.edges if rule.edge in edges and _is_unsaid(rule))]


def _is_unsaid(rule: ArgumentRule | EdgeRule) -> bool:
    return rule.standing is ArgumentStanding.UNSAID


def _raised(caller: str, failure: Observation, found: Sequence[CallEvidence]) -> Culprit:
    """Conclude from an exception, raised by the code around the calls or by a kernel."""
    if not failure.kernel:
        return Culprit(Blame.CALLER, f"The caller is at fault: {caller} raised before any launch.")
    if failure.kind is Kind.RAISED and any(evidence.alone.passes for evidence in found):
        said = f"Its calls pass on their own, so it raised the exception itself: {_line(failure)}"
        return Culprit(Blame.CALLER, f"The caller is at fault: {caller} raised after its launches.", (said,))
    if failure.kernel not in entry_points():
        return _unknown(failure, found)
    verb = "rejects" if failure.kind is Kind.UNEXPECTED_REJECTION else "fails in"
    return Culprit(
        Blame.KERNEL,
        f"The kernel is at fault: {failure.kernel} {verb} a call that meets every known precondition.",
        (_line(failure), *_elsewhere(found)),
        call=failure.call,
    )


def _disobedient(evidence: CallEvidence) -> Culprit:
    wrong = evidence.wrong
    assert wrong is not None
    assert wrong.failure is not None
    op = _op(evidence, wrong.call)
    return Culprit(
        Blame.KERNEL,
        f"The kernel is at fault: the result of {op} contradicts its arguments.",
        (
            "The call meets every known precondition. Compared with attention to the keys that it names: "
            + _line(wrong.failure),
            *_elsewhere([evidence]),
        ),
        call=wrong.call,
    )


def _stray(failure: Observation, found: Sequence[CallEvidence]) -> Culprit:
    """Conclude from a wild access, a hang or overwritten memory in calls that break no precondition."""
    said = _elsewhere(found)
    also = [name for evidence in found for name, outcome in evidence.elsewhere.items() if outcome.kind is failure.kind]
    if also:
        return Culprit(
            Blame.UNCLEAR,
            f"Unclear: {failure.kernel} and the kernels of {', '.join(also)} fail in the same way on a call that "
            "meets every known precondition.",
            said,
            call=failure.call,
        )
    if failure.kernel not in entry_points():
        return _unknown(failure, found)
    if not any(evidence.alone.failed for evidence in found) and any(evidence.alone.runs for evidence in found):
        return Culprit(
            Blame.UNCLEAR,
            "Unclear: its calls meet every known precondition, and pass on their own.",
            (*_obstacles(found), *said),
            call=failure.call,
        )
    return Culprit(
        Blame.KERNEL,
        f"The kernel is at fault: its call, of {failure.kernel}, meets every known precondition, but fails: "
        f"{failure.kind}.",
        said,
        call=failure.call,
    )


def _wrong(caller: str, failure: Observation, found: Sequence[CallEvidence]) -> Culprit:
    """Conclude from wrong numbers of calls whose results, as far as judged, agree with their arguments."""
    if any(outcome.passes for evidence in found if evidence.alone.failed for outcome in evidence.elsewhere.values()):
        return Culprit(
            Blame.KERNEL,
            "The kernel is at fault: other kernels give the correct output for the same calls.",
            _elsewhere(found),
        )
    said = (*_obstacles(found), *_elsewhere(found))
    if failure.kind is Kind.NONDETERMINISTIC:
        conclusion = "The kernel is at fault: the same call gives different bits for the same inputs."
        return Culprit(Blame.KERNEL, conclusion, (_line(failure), *said))
    if failure.kind is Kind.METAMORPHIC_MISMATCH and failure.margin is None and _judged(found):
        return Culprit(
            Blame.KERNEL,
            "The kernel is at fault: two calls that must agree bit for bit are both correct, but differ in bits.",
            (_line(failure), *said),
        )
    if _judged(found):
        asked = sum(len(evidence.asked) for evidence in found)
        attends = all(each.case.answer is not None for evidence in found for each in evidence.asked)
        noun = "attention call" if attends else "call"
        each = f"Its {noun}" if asked == 1 else f"Each of its {asked} {noun}s"
        does = "computes attention to the keys that it names" if attends else "computes what its arguments name"
        between = sorted({call.op for each in found if each.calls for call in each.calls.calls if call.op in BETWEEN})
        rest = f" The calls between them, {', '.join(between)}, were not judged separately." if between else ""
        return Culprit(
            Blame.CALLER,
            f"The caller is at fault: the kernels do what their arguments say, but {caller} passes wrong arguments.",
            (f"{each} breaks no precondition and {does}.{rest}", *said),
            differences=tuple(each for evidence in found for each in evidence.differences),
            call=found[0].asked[0].call if asked == 1 else -1,
        )
    return _unknown(failure, found)


def _unknown(failure: Observation, found: Sequence[CallEvidence]) -> Culprit:
    """Conclude nothing: the meaning of the calls' arguments is unknown."""
    conclusion = f"Unclear: the meaning of the arguments of {failure.kernel or 'its calls'} is unknown."
    return Culprit(Blame.UNCLEAR, conclusion, (*_obstacles(found), *_elsewhere(found)), call=failure.call)


def _judged(found: Sequence[CallEvidence]) -> bool:
    return bool(found) and all(evidence.judged for evidence in found)


def _elsewhere(found: Sequence[CallEvidence]) -> tuple[str, ...]:
    """Return the results of the same calls on other kernels."""
    ends = {name: outcome for evidence in found for name, outcome in evidence.elsewhere.items() if outcome.runs}
    return tuple(f"The same calls on the kernels of {name} {_ended(outcome)}." for name, outcome in ends.items())


def _obstacles(found: Sequence[CallEvidence]) -> tuple[str, ...]:
    obstacles = dict.fromkeys(obstacle for evidence in found for obstacle in evidence.obstacles)
    return tuple(f"{obstacle[0].upper()}{obstacle[1:]}." for obstacle in obstacles)


def _ended(outcome: VariantOutcome) -> str:
    """Describe the outcome of calls: "pass", "end with OutputMismatch at out", "end with Hang in 2 of 5 runs"."""
    if outcome.failure is None:
        return "pass"
    place = f" at {outcome.failure.place}" if outcome.failure.place else ""
    often = f" in {outcome.failed} of {count(outcome.runs, 'run')}" if outcome.failed < outcome.runs else ""
    return f"end with {outcome.failure.kind}{place}{often}"


def _op(evidence: CallEvidence, call: int) -> str:
    assert evidence.calls is not None
    return evidence.calls.calls[call].op


def _line(failure: Observation) -> str:
    return failure.message.splitlines()[0]
