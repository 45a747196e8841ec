"""What a job keeps between its slices, and leaves to other jobs."""

import math
from itertools import count

import pytest

from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.search.hunter import SECONDS_FOR_SCRIPT, Hunter
from attnfuzz.harness.search.messages import (
    AnyMessage,
    Caught,
    HandedOver,
    Interesting,
    JobSetup,
    Lost,
    ShrinkBudget,
    Slice,
    SliceKind,
    Suspect,
    Tally,
)
from attnfuzz.harness.verdict.failures import Kind

pytestmark = pytest.mark.slow

UNSHRUNK = ShrinkBudget(runs=0, seconds=0.0)
SHRINKING = ShrinkBudget(runs=50, seconds=20.0)


class Ran:
    """A script whose result is known when it was asked for `times` times, or when it is waited for."""

    def __init__(self, caught: Caught, script: str | None, times: int = 0) -> None:
        self.handed = HandedOver(fingerprint=caught.fingerprint, case=caught.case, script=script)
        self.times = times
        self.closed = False

    def poll(self, seconds: float) -> HandedOver | None:
        self.times -= 1
        return self.handed if seconds or self.times < 0 else None

    def close(self) -> None:
        self.closed = True


def no_script(caught: Caught, *_: object) -> Ran:
    """Make no script."""
    return Ran(caught, None)


def test_pairs_reached_by_a_slice_are_not_new_to_the_next(defective: str) -> None:
    backend = f"{defective}:NONE"
    sent: list[AnyMessage] = []
    with Hunter(JobSetup(backends=(backend,), contract="declared", guard=None), sent.append, no_script) as hunter:
        for index in range(2):
            hunter.run(Slice(backend=backend, index=index, seed=index, examples=15))
    reached = [pair for message in sent if isinstance(message, Interesting) for pair in message.pairs]
    assert reached
    assert len(reached) == len(set(reached))


def test_a_backend_does_not_run_where_another_has_damaged_the_process(defective: str) -> None:
    """Such as its heap: a correct backend would fail in its place."""
    backends = tuple(f"{defective}:{name}" for name in ("SPOILS_ITS_PROCESS", "WRONG_WHERE_SPOILT"))
    sent: list[AnyMessage] = []
    with Hunter(JobSetup(backends=backends, contract="declared", guard=None), sent.append, no_script) as hunter:
        done = [hunter.run(Slice(backend=each, index=0, seed=1, examples=5, shrink=SHRINKING)) for each in backends]
    assert [each.tally.searched for each in done] == [5, 5]
    assert not [message for message in sent if isinstance(message, Caught | Lost | Suspect)]


@pytest.mark.parametrize("first_only", [False, True])
def test_each_failure_is_followed_by_its_script(defective: str, *, first_only: bool) -> None:
    backend, numbers = f"{defective}:SEGFAULT", count()
    sent: list[AnyMessage] = []
    setup = JobSetup(backends=(backend,), contract="declared", guard=None)

    def hand_over(caught: Caught, _: object, seconds: float) -> Ran:
        assert seconds == math.inf
        return Ran(caught, f"{caught.case.backend} {next(numbers)}")

    with Hunter(setup, sent.append, hand_over) as hunter:
        task = Slice(backend=backend, index=0, seed=1, examples=5, shrink=UNSHRUNK, first_only=first_only)
        done = hunter.run(task)
    assert done.stopped_early
    messages = [each for each in sent if isinstance(each, Caught | HandedOver)]
    assert isinstance(messages[0], Caught)
    scripts = [each.script for each in messages[1:] if isinstance(each, HandedOver)]
    assert scripts == ([] if first_only else [f"{backend} 0"])


def test_later_slices_run_while_a_script_does(defective: str) -> None:
    backend = f"{defective}:EMPTY_ROW"
    sent: list[AnyMessage] = []
    made: list[Ran] = []

    def hand_over(caught: Caught, *_: object) -> Ran:
        made.append(Ran(caught, "script", times=1000))
        return made[-1]

    setup = JobSetup(backends=(backend,), contract="declared", guard=None)
    with Hunter(setup, sent.append, hand_over) as hunter:
        hunter.run(Slice(backend=backend, index=0, seed=1, examples=40, shrink=UNSHRUNK))
        (caught,) = (each for each in sent if isinstance(each, Caught))
        assert caught.script_follows
        searched = hunter.run(Slice(backend=backend, index=1, seed=2, examples=5, known=(caught.fingerprint,)))
        assert searched.tally.searched
        assert not any(isinstance(each, HandedOver) for each in sent)
        hunter.run(Slice(backend=backend, kind=SliceKind.SCRIPTED, seed=1, examples=0))
    assert isinstance(sent[-1], HandedOver)
    assert [each.closed for each in made] == [True]


def test_a_known_failure_gets_no_script_during_the_search(defective: str) -> None:
    backend = f"{defective}:EMPTY_ROW"
    sent: list[AnyMessage] = []
    entry = Entry(backend=backend, kind=Kind.EMPTY_ROW, reason="known")
    setup = JobSetup(backends=(backend,), contract="declared", guard=None, ledger=(entry,))

    def hand_over(*_: object) -> Ran:
        raise AssertionError

    with Hunter(setup, sent.append, hand_over) as hunter:
        hunter.run(Slice(backend=backend, index=0, seed=1, examples=40, shrink=UNSHRUNK))
    assert [each.script_follows for each in sent if isinstance(each, Caught)] == [False]


@pytest.mark.parametrize(("seconds", "scripts"), [(SECONDS_FOR_SCRIPT + 60.0, 1), (SECONDS_FOR_SCRIPT, 0)])
def test_a_slice_with_little_time_leaves_scripts_to_a_later_one(
    defective: str, *, seconds: float, scripts: int
) -> None:
    backend = f"{defective}:SEGFAULT"
    sent: list[AnyMessage] = []
    setup = JobSetup(backends=(backend,), contract="declared", guard=None)
    task = Slice(backend=backend, index=0, seed=1, examples=5, shrink=UNSHRUNK, shrink_seconds=seconds)
    with Hunter(setup, sent.append, no_script) as hunter:
        hunter.run(task)
        (caught,) = [each for each in sent if isinstance(each, Caught)]
        assert [isinstance(each, HandedOver) for each in sent].count(True) == scripts
        sent.clear()
        later = hunter.run(
            Slice(backend=backend, kind=SliceKind.SCRIPTED, seed=1, examples=0, scripted=caught, seconds=1.0)
        )
    assert sent == [HandedOver(fingerprint=caught.fingerprint, case=caught.case, script=None)]
    assert later.tally == Tally()
