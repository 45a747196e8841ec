"""What a job keeps between its slices, and leaves to other jobs."""

import math
from itertools import count

import pytest

from attnfuzz.harness.search.hunter import Hunter
from attnfuzz.harness.search.messages import (
    AnyMessage,
    Caught,
    HandedOver,
    Interesting,
    JobSetup,
    Lost,
    ShrinkBudget,
    Slice,
    Suspect,
)

pytestmark = pytest.mark.slow

SHRINKING = ShrinkBudget(runs=50, seconds=20.0)


def no_script(*_: object) -> HandedOver:
    """Make no script."""
    return HandedOver(script=None)


def test_what_a_slice_reached_is_not_new_to_the_next(defective: str) -> None:
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
    unshrunk = ShrinkBudget(runs=0, seconds=0.0)

    def hand_over(caught: Caught, _: object, seconds: float) -> HandedOver:
        assert seconds == math.inf
        return HandedOver(script=f"{caught.case.backend} {next(numbers)}")

    with Hunter(setup, sent.append, hand_over) as hunter:
        task = Slice(backend=backend, index=0, seed=1, examples=5, shrink=unshrunk, first_only=first_only)
        done = hunter.run(task)
    assert done.stopped_early
    messages = [each for each in sent if isinstance(each, Caught | HandedOver)]
    assert isinstance(messages[0], Caught)
    assert messages[1:] == ([] if first_only else [HandedOver(script=f"{backend} 0")])
