"""Look for one failure in one release."""

from collections.abc import Iterator
from typing import Any

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.releases.outcomes import Ending, Outcome
from attnfuzz.harness.releases.wanted import Wanted, fingerprint_anywhere
from attnfuzz.harness.reported.counterparts import cases_like, with_views_of
from attnfuzz.harness.sandbox.case_runner import CaseRunner
from attnfuzz.harness.sandbox.check import why_not
from attnfuzz.harness.sandbox.confirm import recheck
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.workers.lifeline import NurseryError
from attnfuzz.harness.workers.supervisor import HandlerError
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case
from attnfuzz.reference.user_error import UserError

MOST_CASES = 8
"""Most geometries that a reported case is moved into."""

CANNOT_BE_JUDGED = (HandlerError, NurseryError, UserError)
"""Exceptions of a release that can't be run, which say nothing about any failure."""


class Replayed(Outcome, frozen=True, kw_only=True):
    """The result. If it fails, `case` is the case that was run, and `fingerprint` the failure's, without a backend."""

    case: AnyCase | None = None
    fingerprint: Fingerprint | None = None


def replayed(wanted: Wanted, backend: str, runner: CaseRunner[Any]) -> Replayed:
    """Run the case on `backend` in a fresh worker, with fresh values too. Raises the runner's errors."""
    otherwise: Observation | None = None
    reason = ""
    passed = False
    for case in _cases(wanted, backend):
        lacking = why_not(resolve(backend), case)
        verdict = None if lacking is not None else recheck(runner, case)[1]
        if verdict is None or verdict.unsupported is not None:
            reason = reason or (verdict.unsupported if verdict else f"it does not support {lacking}") or ""
            continue
        shown = wanted.shown_by(verdict)
        if shown is not None:
            return Replayed(Ending.FAILS, _line(shown), case=case, fingerprint=fingerprint_anywhere(shown))
        passed = True
        otherwise = otherwise or next(iter(verdict.failures), None)
    if otherwise is not None:
        return Replayed(Ending.FAILS_OTHERWISE, _line(otherwise))
    return Replayed(Ending.PASSES) if passed else Replayed(Ending.CANNOT_RUN, reason)


def reason_of(error: Exception, backend: str = "") -> str:
    """State why a release can't be run, in a line without its name; the last line of a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1].removeprefix(f"{backend} can't run here: ").removeprefix(f"{backend.rpartition(':')[0]}: ")


def _cases(wanted: Wanted, backend: str) -> Iterator[AnyCase]:
    """Yield the case on `backend`; a reported one also in the backend's geometries."""
    own = wanted.case.having(backend=backend)
    if not wanted.reported or not isinstance(own, Case):
        yield own
        return
    # If there is none, the nearest shows the missing feature.
    yield from cases_like(own, backend)[:MOST_CASES] or [with_views_of(resolve(backend).capability, own)]


def _line(observation: Observation) -> str:
    place = f" at {observation.place}" if observation.place else ""
    mode = f", {observation.mode}" if observation.mode else ""
    message = observation.message.partition("\n")[0]
    return f"{observation.kind}{place}{mode}: {message}"
