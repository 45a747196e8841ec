"""Cases on the unchanged code, and then on a mutant of it."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from attnfuzz.harness.mutants.results import Fate, MeasuredCase, MutantOutcome
from attnfuzz.harness.mutation.changes import Mutant, PlacedMutant
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.workers.supervisor import HandlerError, Refused
from attnfuzz.harness.workers.task import Watch
from attnfuzz.reference.any_case import AnyCase

_RAISED = frozenset({Kind.RAISED, Kind.UNEXPECTED_REJECTION})

_NO_MEMORY = ("MemoryError", "can't allocate memory", "Cannot allocate memory")
"""Parts of the messages of Python and of torch when they get no memory."""


class WatchingRunner(Protocol):
    """The part of a Runner that runs mutants."""

    def watched(self, case: AnyCase, watch: Watch) -> Verdict:
        """Run a case, with the records that the watch asks for."""
        ...

    def renew(self) -> None:
        """Use a fresh worker for the next case."""
        ...


class Stopped(Exception):
    """The run was interrupted."""


def measured(number: int, case: AnyCase, places: tuple[str, ...], runner: WatchingRunner) -> MeasuredCase | None:
    """Run a case on the unchanged code. Returns None for one that fails, is not supported, or has no steady plan.

    It runs twice, in workers with different pasts: a plan that depends on more than the case could not tell a mutant
    from the original.
    """
    first = runner.watched(case, Watch(places=places))
    if first.failures or first.unsupported is not None or first.watched is None:
        return None
    runner.renew()
    again = runner.watched(case, Watch())
    if again.watched is None or again.watched.plan != first.watched.plan:
        return None
    return MeasuredCase(number=number, case=case, plan=first.watched.plan, lines=first.watched.lines)


def reaching(found: PlacedMutant, cases: Sequence[MeasuredCase]) -> list[MeasuredCase]:
    """Return the cases that execute a line of a mutant's statement: no other can differ."""
    lines, file = set(found.lines), found.mutant.file
    return [each for each in cases if not lines.isdisjoint(each.lines.get(file, ()))]


def examined(
    mutant: Mutant,
    source: str,
    cases: Sequence[MeasuredCase],
    runner: WatchingRunner,
    *,
    seconds: float,
    stop: threading.Event,
) -> MutantOutcome:
    """Run a mutant on cases until one fails, also in a fresh worker, or the time is over. Raises Stopped."""
    began, watch, tally = time.monotonic(), Watch(mutant=mutant), _Tally()
    runner.renew()
    for each in cases:
        if stop.is_set():
            raise Stopped
        if tally.ran and time.monotonic() - began >= seconds:
            break
        verdict = _verdict(each.case, watch, runner)
        failure = None
        if verdict.failures:
            runner.renew()
            failure = next(iter(_verdict(each.case, watch, runner).failures), None)
        tally.add(each, verdict, failure)
        if tally.fate is not None:
            break
    failure, changed = tally.failure, tally.changed
    return MutantOutcome(
        mutant=mutant,
        source=source,
        fate=tally.fate or (Fate.SURVIVED if changed else Fate.REFUSES if tally.refused else Fate.SAME_PLANS),
        kind="" if failure is None else failure.kind.value,
        place="" if failure is None else failure.place,
        message=(tally.refused[0] if tally.refused else "") if failure is None else failure.message.partition("\n")[0],
        number=tally.number,
        ran=tally.ran,
        reached=len(cases),
        changed=len(changed),
        difference="" if failure is not None or not changed else _difference(changed[0].case, mutant, runner),
        refused=len(tally.refused),
        unconfirmed=tally.unconfirmed,
        seconds=round(time.monotonic() - began, 3),
    )


@dataclass
class _Tally:
    """The runs of a mutant so far. `fate` is set when no other run can change it."""

    fate: Fate | None = None
    failure: Observation | None = None
    number: int = 0
    ran: int = 0
    unconfirmed: int = 0
    changed: list[MeasuredCase] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def add(self, case: MeasuredCase, verdict: Verdict, failure: Observation | None) -> None:
        """Add a run, with the failure that came back in a fresh worker, if one did."""
        self.ran += 1
        if failure is not None:
            self.fate, self.failure, self.number = _fate_of(failure), failure, case.number
        elif verdict.watched is not None and not verdict.watched.made:
            self.fate = Fate.NOT_MADE
        elif verdict.unsupported is not None:
            self.refused.append(verdict.unsupported)
        elif verdict.watched is None or verdict.watched.plan != case.plan:
            self.changed.append(case)
        self.unconfirmed += bool(verdict.failures) and failure is None


def _verdict(case: AnyCase, watch: Watch, runner: WatchingRunner) -> Verdict:
    """Run a mutant on a case. Errors of the worker around the backend count, such as too little memory for it.

    A question whose answer only a server knows says nothing about the mutant: its case is not supported.
    """
    try:
        return runner.watched(case, watch)
    except Refused as error:
        return Verdict(unsupported=str(error))
    except HandlerError as error:
        message = str(error).strip().rpartition("\n")[-1]
        return Verdict(observations=(Observation(kind=Kind.RAISED, place="the worker", message=message),))


def _difference(case: AnyCase, mutant: Mutant, runner: WatchingRunner) -> str:
    """Return the first part of a case's plan that a mutant changes, adds or drops; "" if none does this time."""
    own, changed = (
        () if seen is None else seen.parts
        for seen in (
            runner.watched(case, Watch(parts=True)).watched,
            _verdict(case, Watch(parts=True, mutant=mutant), runner).watched,
        )
    )
    parts = (
        (other or one)[0] if one is None or other is None or one[0] == other[0] else f"{other[0]} for {one[0]}"
        for one, other in zip_longest(own, changed)
        if one != other
    )
    return next(parts, "")


def _fate_of(failure: Observation) -> Fate:
    if failure.kind is Kind.HANG:
        return Fate.HANGS
    if failure.kind not in _RAISED:
        return Fate.KILLED
    short = any(words in f"{failure.place} {failure.message}" for words in _NO_MEMORY)
    return Fate.OUT_OF_MEMORY if short else Fate.RAISES
