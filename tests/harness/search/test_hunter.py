"""What a job keeps between its slices, and leaves to other jobs."""

from itertools import count

import pytest
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import TIMEOUT_SECONDS
from attnfuzz.harness.search.hunter import SECONDS_PER_SCRIPT, SECONDS_TO_HANG, Hunter
from attnfuzz.harness.search.messages import (
    AnyMessage,
    Caught,
    Interesting,
    JobSetup,
    Lost,
    ShrinkBudget,
    Slice,
    Suspect,
)
from attnfuzz.reference.device import Device

pytestmark = pytest.mark.slow

SHRINKING = ShrinkBudget(runs=50, seconds=20.0)


def test_what_a_slice_reached_is_not_new_to_the_next(defective: str) -> None:
    backend = f"{defective}:NONE"
    sent: list[AnyMessage] = []
    with Hunter(JobSetup(backends=(backend,), contract="declared", guard=None), sent.append) as hunter:
        for index in range(2):
            hunter.run(Slice(backend=backend, index=index, seed=index, examples=15))
    reached = [pair for message in sent if isinstance(message, Interesting) for pair in message.pairs]
    assert reached
    assert len(reached) == len(set(reached))


def test_a_backend_does_not_run_where_another_has_damaged_the_process(defective: str) -> None:
    """Such as its heap: a correct backend would fail in its place."""
    backends = tuple(f"{defective}:{name}" for name in ("SPOILS_ITS_PROCESS", "WRONG_WHERE_SPOILT"))
    sent: list[AnyMessage] = []
    with Hunter(JobSetup(backends=backends, contract="declared", guard=None), sent.append) as hunter:
        done = [hunter.run(Slice(backend=each, index=0, seed=1, examples=5, shrink=SHRINKING)) for each in backends]
    assert [each.tally.searched for each in done] == [5, 5]
    assert not [message for message in sent if isinstance(message, Caught | Lost | Suspect)]


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ({}, True),
        ({"script_seconds": SHRINKING.seconds + 10 * SECONDS_PER_SCRIPT[Device.CPU]}, True),
        ({"script_seconds": SECONDS_PER_SCRIPT[Device.CPU]}, False),
        ({"first_only": True}, False),
    ],
)
def test_a_failure_has_a_script_if_there_is_time_for_it(defective: str, options: dict[str, object], made: bool) -> None:
    backend, numbers = f"{defective}:SEGFAULT", count()
    sent: list[AnyMessage] = []
    setup = JobSetup(backends=(backend,), contract="declared", guard=None)
    with Hunter(setup, sent.append, lambda caught, _: f"{caught.case.backend} {next(numbers)}") as hunter:
        task = Slice(backend=backend, index=0, seed=1, examples=5, shrink=ShrinkBudget(runs=0, seconds=0.0))
        hunter.run(replace(task, **options))
    (caught,) = (message for message in sent if isinstance(message, Caught))
    assert caught.script == (f"{backend} 0" if made else None)


def test_a_case_that_hangs_needs_more_time_for_its_script() -> None:
    assert SECONDS_TO_HANG > 2 * TIMEOUT_SECONDS > SECONDS_PER_SCRIPT[Device.CUDA]
