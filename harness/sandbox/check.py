"""check(case): the whole interface, and the Runner below it that judges cases in workers that may die."""

import atexit
import hashlib
import os
import shlex
from functools import cache
from pathlib import Path

import hypothesis

from attnfuzz.harness.backends import registry
from attnfuzz.harness.verdict.describe_calls import describe_any
from attnfuzz.harness.verdict.failures import FAILURES, Kind, Verdict
from attnfuzz.kernels.backend import Backend
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import AnyCase

TIMEOUT_SECONDS = 30.0
"""A small case takes milliseconds: what runs this long hangs."""


def why_not(backend: Backend, case: AnyCase) -> str | None:
    """What of a case a backend does not support; None if it supports it all."""
    if isinstance(case, Case):
        return backend.capability.why_not(case)
    lacking = sorted({call.op for call in case.calls} - backend.ops.keys())
    return f"calls of {', '.join(lacking)}" if lacking else None


def render_failure(case: AnyCase, verdict: Verdict) -> str:
    """A failure for a person: kind, place and words of each observation, margins, and the case."""
    lines = []
    for observation in verdict.failures:
        where = f"step {observation.step}" if observation.step >= 0 else "no step on record"
        where += f" ({observation.mode})" if observation.mode else ""
        what = f"{observation.kind}: {observation.place}" if observation.place else observation.kind.value
        lines.append(f"{what}, {where}, {observation.kernel or 'no kernel on record'}")
        lines += [f"  {line}" for line in observation.message.splitlines()]
        if observation.margin is not None:
            lines.append(f"  {observation.tier}: {observation.margin:.3g} times the bound")
    if verdict.margins:
        margins = ", ".join(f"{tier} {margin:.2g}" for tier, margin in sorted(verdict.margins.items()))
        lines.append(f"margins: {margins}")
    return "\n".join([*lines, "", describe_any(case)])


@cache
def shared_runner() -> Runner:
    """The process's own Runner, for check()."""
    runner = Runner()
    atexit.register(runner.close)
    return runner


def check(case: AnyCase) -> None:
    """Run a case and raise its first failure as one of attnfuzz.harness.verdict.failures.FAILURES.

    The failing case is left in .attnfuzz/, and the last line of the message replays it. Hypothesis runs the smallest
    case last and tells bugs apart by their kind, so there is one file for each test and kind, which holds the smallest.

    Raises:
        CannotRun: the backend does not support the case; inside of a Hypothesis test, the example is rejected instead.

    """
    __tracebackhide__ = True
    verdict = shared_runner().verdict(case)
    if verdict.unsupported is not None:
        if hypothesis.currently_in_test_context():
            hypothesis.reject()
        raise CannotRun(f"{case.backend} rejects this case: {verdict.unsupported}")
    if verdict.failures:
        first = verdict.failures[0]
        path = _leave(case, first.kind)
        again = f"replay: attnfuzz replay {shlex.quote(str(path))}"
        raise FAILURES[first.kind](first, f"{render_failure(case, verdict)}\n\n{again}")


def _leave(case: AnyCase, kind: Kind) -> Path:
    """Save a case that fails, under a name of its own for each test, backend and kind."""
    # pytest's name for the test that runs, so that no test takes another's file, on other workers of xdist neither.
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    digest = hashlib.sha256(f"{test}\0{case.backend}".encode()).hexdigest()[:8]
    backend = registry.as_file_name(Path(case.backend).name)
    CASES.mkdir(exist_ok=True)
    path = CASES / f"{backend}-{kind}-{digest}.json"
    case_file.save(path, case)
    return path
