"""check(case) for users' tests. Inside a Hypothesis test, our reducer shrinks failures."""

import hashlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from random import Random
from weakref import WeakKeyDictionary

import hypothesis
from msgspec import structs

from attnfuzz.harness.backends import registry
from attnfuzz.harness.files.ignored import make_ignored_folder
from attnfuzz.harness.pytest.in_hypothesis import end_search, run_key
from attnfuzz.harness.sandbox.check import CASES, CannotRun, render_failure, shared_runner
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.shrink import shrink
from attnfuzz.harness.verdict.failures import FAILURES, Failure, Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase

BUDGET = ShrinkBudget()
"""The budget for shrinking a test's failure, as in a campaign."""


@dataclass(frozen=True)
class _Found:
    """The first failure of a test run: the drawn case, and the smallest one's observation and message."""

    case: AnyCase
    observation: Observation
    message: str

    @property
    def error(self) -> Failure:
        """A new exception: re-raising one would keep its old traceback."""
        return FAILURES[self.observation.kind](self.observation, self.message)


_FOUND: WeakKeyDictionary[Random, _Found] = WeakKeyDictionary()
"""Failures by test run."""

_LAST: list[_Found] = []
"""The last failure, which Hypothesis repeats at the end of the run to report it."""


def check(case: AnyCase) -> None:
    """Run a case and raise its first failure as one of attnfuzz.harness.verdict.failures.FAILURES.

    Inside a Hypothesis test, the message is about the smallest case with the same cause, and Hypothesis neither shrinks
    nor draws another example, because its shrinking would slide from one bug into another.

    The message's case is saved in .attnfuzz/, in one file per test and kind of failure, and the
    last line of the message replays it.

    Raises:
        CannotRun: the backend does not support the case; inside a Hypothesis test, the example is rejected instead.

    """
    __tracebackhide__ = True
    found = _judged_in_test(case) if hypothesis.currently_in_test_context() else _judged(case, small=False)
    if found is not None:
        raise found.error


def _judged_in_test(case: AnyCase) -> _Found | None:
    key = run_key()
    before = None if key is None else _FOUND.get(key)
    if before is not None:
        return before if before.case == case else None
    found = _judged(case, small=True, final=key is None)
    if found is not None and key is not None:
        _FOUND[key] = found
        end_search()
    return found


def _judged(case: AnyCase, *, small: bool, final: bool = False) -> _Found | None:
    """Judge a case. Returns its first failure, shrunk if `small`; None if it passes. `final`: Hypothesis repeats it."""
    verdict = shared_runner().verdict(case)
    if verdict.unsupported is not None:
        if hypothesis.currently_in_test_context():
            hypothesis.reject()
        raise CannotRun(f"{case.backend} rejects this case: {verdict.unsupported}")
    if not verdict.failures:
        return None
    if not small:
        return _Found(case, verdict.failures[0], _message(case, verdict))
    known = next((each for each in _LAST if final and each.case == case), None)
    _LAST[:] = [known or _smallest(case, verdict)]
    return _LAST[0]


def _smallest(case: AnyCase, verdict: Verdict) -> _Found:
    shrunk = shrink(case, shared_runner(), budget=BUDGET)
    if shrunk is None:
        return _Found(case, verdict.failures[0], _message(case, verdict, "it passed when run again"))
    again = shared_runner().verdict(shrunk.case)
    shown = _led_by(shrunk.observation, case.backend, again if again.failures else verdict)
    note = f"shrunk in {count(shrunk.runs, 'run')} from case {case_file.case_id(case)}"
    if not shrunk.steady:
        note = "it did not fail again in a fresh worker"
    return _Found(case, shown.failures[0], _message(shrunk.case, shown, note))


def _led_by(failure: Observation, backend: str, verdict: Verdict) -> Verdict:
    """Return the verdict with this failure first: the exception's type is that of the text's first line."""
    own = Fingerprint.of(backend, failure).among(verdict.failures)
    others = (each for each in verdict.observations if each is not own)
    return verdict if own is None else structs.replace(verdict, observations=(own, *others))


def _message(case: AnyCase, verdict: Verdict, note: str = "") -> str:
    path = _leave(case, verdict.failures[0].kind)
    lines = (
        render_failure(case, shared_runner().explained(case, verdict)),
        note,
        f"replay: attnfuzz replay {shlex.quote(str(path))}",
    )
    return "\n\n".join(filter(None, lines))


def _leave(case: AnyCase, kind: Kind) -> Path:
    """Save a failing case, in one file per test, backend and kind."""
    # By pytest's name of the running test, so that tests don't share files, even across xdist workers.
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    digest = hashlib.sha256(f"{test}\0{case.backend}".encode()).hexdigest()[:8]
    backend = registry.as_file_name(Path(case.backend).name)
    make_ignored_folder(CASES)
    path = CASES / f"{backend}-{kind}-{digest}.json"
    case_file.save(path, case)
    return path
