"""Cases on the unchanged code, and then on a mutant of it."""

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from attnfuzz.harness.mutants.results import Fate, MeasuredCase, MutantOutcome
from attnfuzz.harness.mutation.changes import Mutant, PlacedMutant
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
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
    began, ran, changed, refused, unconfirmed = time.monotonic(), 0, 0, 0, 0
    watch = Watch(mutant=mutant)
    fate, failure, number = Fate.SAME_PLANS, None, 0
    runner.renew()
    for each in cases:
        if stop.is_set():
            raise Stopped
        if ran and time.monotonic() - began >= seconds:
            break
        ran += 1
        verdict = runner.watched(each.case, watch)
        if verdict.failures:
            runner.renew()
            again = runner.watched(each.case, watch)
            if again.failures:
                failure, number = again.failures[0], each.number
                fate = _fate_of(failure)
                break
            unconfirmed += 1
        elif verdict.watched is not None and not verdict.watched.made:
            fate = Fate.NOT_MADE
            break
        if verdict.unsupported is not None:
            refused += 1
        else:
            changed += verdict.watched is None or verdict.watched.plan != each.plan
    if fate is Fate.SAME_PLANS and changed + refused:
        fate = Fate.SURVIVED if changed else Fate.REFUSES
    return MutantOutcome(
        mutant=mutant,
        source=source,
        fate=fate,
        kind="" if failure is None else failure.kind.value,
        place="" if failure is None else failure.place,
        message="" if failure is None else failure.message.partition("\n")[0],
        number=number,
        ran=ran,
        reached=len(cases),
        changed=changed,
        refused=refused,
        unconfirmed=unconfirmed,
        seconds=round(time.monotonic() - began, 3),
    )


def _fate_of(failure: Observation) -> Fate:
    if failure.kind is Kind.HANG:
        return Fate.HANGS
    if failure.kind not in _RAISED:
        return Fate.KILLED
    short = any(words in f"{failure.place} {failure.message}" for words in _NO_MEMORY)
    return Fate.OUT_OF_MEMORY if short else Fate.RAISES
