"""The calls of a backend whose kernels have not run on this GPU: one call each, and the arguments that it refuses.

A call that raises is made again without each of its arguments in turn: an argument is refused if the call then goes
through.
"""

import time
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from attnfuzz.harness.backends.registry import builtin, fixed, resolve
from attnfuzz.harness.calls.trace import Untraceable
from attnfuzz.harness.doctor.measurement import Measurement, judged, not_measured
from attnfuzz.harness.family import family_with
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import DEATHS, Kind, Verdict
from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.interface.backend import archs_of
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase

_SECONDS = 20.0
"""Time limit of a call's further runs. A run takes milliseconds, or seconds if it kills its worker."""

_REFUSALS = (Kind.RAISED, Kind.UNEXPECTED_REJECTION)


def first_on(capability: str) -> tuple[str, ...]:
    """Return the backends that exist for GPUs of `capability` and of its family alone, such as 10.0 and 10.3.

    Without a counterpart that runs on other GPUs, nothing else has tried their calls.
    """
    family = capability.partition(".")[0]
    return tuple(
        name
        for name, backend in builtin().items()
        if name == fixed(name)
        and capability in archs_of(backend)
        and all(arch.partition(".")[0] == family for arch in archs_of(backend))
    )


def bindings(backend: str, runner: Runner) -> Iterator[Measurement]:
    """Make one plain call in each mode of a backend. Yields a row for each. Raises like `Runner.verdict`."""
    first: dict[str, AnyCase] = {}
    capability = resolve(backend).capability
    for case in family_with(capability).plain_cases(capability, backend):
        first.setdefault(case.modes[0], case)
    if not first:
        yield not_measured(f"call of {backend}", "it has no plain cases")
    for mode, case in first.items():
        yield _called(f"{backend}, {mode}", case, runner)


def _called(title: str, case: AnyCase, runner: Runner) -> Measurement:
    try:
        verdict, calls = runner.trace(case)
    except Untraceable as obstacle:
        return not_measured(title, str(obstacle))
    if verdict.unsupported is not None:
        return judged(title, f"refused: {in_a_line(verdict.unsupported)}", works=False)
    if not verdict.failures:
        return judged(title, f"{_words(calls)}: the output is right", works=True)
    seen = verdict.failures[0]
    if seen.kind in _REFUSALS and calls is not None:
        return judged(title, f"{_words(calls)} raises {_message(verdict)}; {_refused(calls, runner)}", works=False)
    where = f" ({seen.place})" if seen.place else ""
    text = "ends its worker" if seen.kind in DEATHS else "returns"
    return judged(title, f"{_words(calls)} {text}: {seen.kind}{where}: {_message(verdict)}", works=False)


def _words(calls: CallCase | None) -> str:
    """Name the ops of a case of calls, and count the arguments of the last one."""
    if calls is None:
        return "no call was made"
    given = sum(value is not None for value in calls.calls[-1].arguments.values())
    return f"{', '.join(each.op for each in calls.calls)} with {count(given, 'argument')}"


def _message(verdict: Verdict) -> str:
    seen = verdict.failures[0]
    return in_a_line(f"{seen.exception or seen.place}: {seen.message.splitlines()[0]}")


def _refused(calls: CallCase, runner: Runner) -> str:
    """Name the arguments without which the last call goes through."""
    *before, last = calls.calls
    refused, until, tried = [], time.monotonic() + _SECONDS, 0
    for name in last.arguments:
        if time.monotonic() > until:
            break
        left = {other: value for other, value in last.arguments.items() if other != name}
        verdict = runner.verdict(replace(calls, calls=(*before, replace(last, arguments=left))))
        tried += 1
        if verdict.unsupported is None and not _fails_to_run(verdict):
            refused.append(name)
    words = f"goes through without {' or without '.join(refused)}" if refused else "no argument is refused by itself"
    return words if tried == len(last.arguments) else f"{words} ({tried} of {len(last.arguments)} arguments left out)"


def _fails_to_run(verdict: Verdict) -> bool:
    return any(each.kind in (*_REFUSALS, *DEATHS) for each in verdict.failures)


def all_bindings(backends: Sequence[str], runner: Runner) -> Iterator[Measurement]:
    """Yield the rows of several backends."""
    for backend in backends:
        yield from bindings(backend, runner)
