"""Triage of one case: run it in other ways, examine its calls, and conclude whose fault it is."""

from collections.abc import Iterator, Sequence
from itertools import chain

from attnfuzz.harness.backends import registry
from attnfuzz.harness.family import family_of
from attnfuzz.harness.sandbox.check import CannotRun, why_not
from attnfuzz.harness.triage.access import Explained, explain_access
from attnfuzz.harness.triage.culprit import Culprit, culprit
from attnfuzz.harness.triage.differences import Difference
from attnfuzz.harness.triage.evidence import CallEvidence, collect
from attnfuzz.harness.triage.repeats import REPEATS, Repeated, Tried, repeated, tried
from attnfuzz.harness.triage.result import Repetition, Triage, Variant, VariantOutcome
from attnfuzz.harness.triage.variants import contrasts, ways
from attnfuzz.harness.verdict.blame import Blame
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.wording import count, left_unjudged
from attnfuzz.kernels.interface.backend import called_as_documented
from attnfuzz.kernels.meaning.known import entry_points
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case_file import case_id

_NOT_AS_GIVEN = "The case itself passes: what follows about calls refers to its first failing variant."
_LISTED = 3
"""Maximum number of differences between a call and its step that are listed."""


def triage(case: AnyCase, runner: Tried, *, repeats: int = REPEATS) -> Triage:
    """Conclude whose fault a failing case is. If it is a race, decisive runs are made `repeats` times.

    Raises:
        CannotRun: its backend rejects it. Otherwise like `Runner.verdict`.

    """
    runs = repeated(case, runner, repeats)
    if runs.outcome.reason:
        raise CannotRun(f"{case.backend} rejects this case: {runs.outcome.reason}")
    tries = repeats if runs.repetition in (Repetition.RACING, Repetition.HISTORY) else 1
    given = runs.failing
    step = given.failures[0].step if given is not None else -1
    varied = [(way, _outcome(way.case, way.reason, runner, 1)) for way in ways(case, step)]
    variants = [*runs.variants, *(Variant(what=way.what, value=way.value, outcome=ended) for way, ended in varied)]
    variants += _on_fixed(case, runner, tries)
    failing = next(
        chain(
            [(case, given.failures[0])] if given is not None else [],
            ((way.case, ended.failure) for way, ended in varied if way.case is not None and ended.failure is not None),
        ),
        None,
    )
    if failing is None and isinstance(case, CallCase) and not case.judged:
        failing = _by_arguments(case, runner, tries)
    if failing is None:
        return _passing(case, variants, runs)
    return _failing(case, *failing, variants, runs, runner, tries)


def blamed_for(case: AnyCase, failure: Observation, runner: Tried) -> Culprit:
    """Conclude whose fault the `failure` of a case is, from a few runs of its calls. Raises like `Runner.verdict`."""
    documented = not isinstance(case, CallCase) and called_as_documented(registry.resolve(case.backend))
    if documented and failure.kernel not in entry_points():
        # Its arguments are known to be right.
        return culprit(case, failure, ())
    return culprit(case, failure, [collect(part, runner) for part in family_of(case).parts(case, failure.step)])


def _by_arguments(case: CallCase, runner: Tried, tries: int) -> tuple[AnyCase, Observation] | None:
    """Return the first call that contradicts its arguments, in calls whose right results are not in the case."""
    wrong = collect(case, runner, tries).wrong
    return None if wrong is None or wrong.failure is None else (wrong.case, wrong.failure)


def _passing(case: AnyCase, variants: list[Variant], runs: Repeated) -> Triage:
    return Triage(
        case=case_id(case),
        backend=case.backend,
        fault=Blame.NONE,
        conclusion="Nothing fails: the case passes in all variants.",
        sentences=tuple(_unanswered(runs)),
        repetition=runs.repetition,
        variants=tuple(variants),
    )


def _failing(
    case: AnyCase,
    culpable: AnyCase,
    failure: Observation,
    variants: list[Variant],
    runs: Repeated,
    runner: Tried,
    tries: int,
) -> Triage:
    """Return the triage of a case of which `culpable`, the case itself or a variant, fails."""
    found = [collect(part, runner, tries) for part in family_of(culpable).parts(culpable, failure.step)]
    blamed = culprit(culpable, failure, found)
    explained = next(filter(None, (_explained(evidence) for evidence in found)), Explained())
    # Calls name their buffers uniquely and identify the failing one.
    call = blamed.call if blamed.call >= 0 else failure.call
    arguments = (
        *explained.arguments,
        *(name for broken in blamed.breaches for name in broken.breach.arguments),
        *(difference.argument for difference in blamed.differences),
    )
    sentences = (
        *(() if culpable is case else (_NOT_AS_GIVEN,)),
        *blamed.sentences,
        *_listed(blamed.differences),
        *explained.sentences,
        *_order(culpable, failure, call, found),
        *_repeated(runs),
        *_unanswered(runs),
        *contrasts(runs, variants),
    )
    return Triage(
        case=case_id(case),
        backend=case.backend,
        fault=blamed.fault,
        conclusion=blamed.conclusion,
        sentences=sentences,
        breaches=tuple(broken.breach.text for broken in blamed.breaches),
        arguments=tuple(dict.fromkeys(arguments)),
        repetition=runs.repetition,
        step=failure.step,
        call=call,
        kernel=failure.kernel,
        failure=failure,
        variants=tuple(variants),
    )


def _outcome(case: AnyCase | None, reason: str, runner: Tried, tries: int) -> VariantOutcome:
    if case is None:
        return VariantOutcome(reason=reason)
    lacking = why_not(registry.resolve(case.backend), case)
    if lacking is not None:
        return VariantOutcome(reason=f"{case.backend} does not support {lacking}")
    return VariantOutcome.of(*tried(case, runner, tries))


def _on_fixed(case: AnyCase, runner: Tried, tries: int) -> list[Variant]:
    """Return the same case on the backend without revision or defect."""
    fixed = registry.fixed(case.backend)
    if fixed == case.backend:
        return []
    outcome = _outcome(case.having(backend=fixed), "", runner, tries)
    return [Variant(what="backend", value=fixed, outcome=outcome)]


def _explained(evidence: CallEvidence) -> Explained | None:
    if evidence.calls is None or evidence.alone.failure is None:
        return None
    explained = explain_access(evidence.calls, evidence.alone.failure)
    return explained if explained.sentences else None


def _listed(differences: Sequence[Difference]) -> Iterator[str]:
    """Yield sentences for the first differences, and the number of the others."""
    yield from (difference.text for difference in differences[:_LISTED])
    if len(differences) > _LISTED:
        yield f"{len(differences) - _LISTED} more differences are not listed."


def _order(case: AnyCase, failure: Observation, call: int, found: list[CallEvidence]) -> Iterator[str]:
    """Yield sentences about the first bad step and its first bad call."""
    if len(case.modes) > 1 and failure.step >= 0:
        yield f"The first failing step is {failure.step} of 0 to {len(case.modes) - 1} ({failure.mode})."
    calls = next((evidence.calls.calls for evidence in found if evidence.calls is not None), ())
    if len(calls) > 1 and 0 <= call < len(calls):
        yield f"The first failing call is {call} of 0 to {len(calls) - 1} ({calls[call].op})."


def _unanswered(runs: Repeated) -> Iterator[str]:
    if runs.outcome.unanswered:
        yield f"{left_unjudged(runs.outcome.unanswered).capitalize()}."


def _repeated(runs: Repeated) -> Iterator[str]:
    """Describe whether the failure is deterministic."""
    failed, outcome = runs.outcome.failed, runs.outcome
    if not failed:
        return
    times = f"It failed in {failed} of {count(outcome.runs, 'run')}"
    match runs.repetition:
        case Repetition.RACING if failed == outcome.runs:
            yield f"{times}, in different ways: it is a race."
        case Repetition.RACING:
            yield f"{times} of the same case: it is a race."
        case Repetition.HISTORY:
            yield f"{times}: it depends on earlier cases in the same process."
        case Repetition.DETERMINISTIC:
            yield f"{times}, each time in the same way: it is deterministic."
        case Repetition.UNKNOWN:
            return
