"""A job's work on slices, however they arrive: it holds the workers, and the state kept between slices."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, Self

from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.family import family_of
from attnfuzz.harness.ledger.entry import reason_of
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.drawn_part import DrawnPart
from attnfuzz.harness.search.examples import drawn_capability, drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import (
    AnyMessage,
    Caught,
    HandedOver,
    JobSetup,
    Slice,
    SliceDone,
    SliceKind,
    Tally,
)
from attnfuzz.harness.search.novelty import Novelty
from attnfuzz.harness.search.rare_deaths import RareDeaths
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.device import Device

SECONDS_FOR_SCRIPT = 10.0
"""Minimum time that a slice must have for the script of a failure. Otherwise the main process asks for it later."""


class Handing(Protocol):
    """A failure that is handed over as soon as its script has run, beside the search."""

    def poll(self, seconds: float) -> HandedOver | None:
        """Return the result, or None if it is not known in `seconds`. The first call starts the script."""
        ...

    def close(self) -> None:
        """End the script, if it runs."""
        ...


HandOver = Callable[[Caught, Runner, float], Handing]
"""Makes a script of a failure that is to run within this number of seconds, and finds out whose fault it is."""

Claimed = Callable[[Fingerprint], bool]
"""Returns whether this job may settle a failure."""


class Hunter:
    """Runs slices one at a time, and sends their messages. Raises Runner's errors.

    `hand_over` makes scripts and triages here, where workers are ready: the main process does not wait for them.
    Scripts run beside the search, one at a time, also while later slices run. `claim` asks the main process.
    """

    def __init__(
        self,
        setup: JobSetup,
        tell: Callable[[AnyMessage], None],
        hand_over: HandOver,
        claim: Claimed = lambda _: True,
    ) -> None:
        self._setup = setup
        self._tell = tell
        self._hand_over = hand_over
        self._handing: deque[Handing] = deque()
        self._claim = claim
        self._deaths = RareDeaths(setup.ledger)
        self._stateful: set[str] = set()
        self._novelty = Novelty(lambda case: family_of(case).space)
        self._ran_last = setup.backends[0]
        self._runner = Runner(
            setup.backends,
            contract=setup.contract,
            alpha=setup.alpha,
            without=setup.without,
            device_index=setup.job,
        )

    def __enter__(self) -> Self:
        """Wait until a worker is ready."""
        self._runner.start(self._setup.backends[0])
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers, and the scripts."""
        for handing in self._handing:
            handing.close()
        self._runner.close()

    @property
    def last_on_gpu(self) -> AnyCase | None:
        """The case that ran last, if it ran on a GPU."""
        return self._runner.last_on_gpu

    def run(self, task: Slice) -> SliceDone:
        """Run a slice to its end, in a worker that has run no other backend.

        A kernel that corrupts its process, such as the heap, may make another kernel fail later. On a GPU, workers take
        seconds to start, and are shared.
        """
        capability = resolve(task.backend).capability
        if task.backend != self._ran_last and capability.device is Device.CPU:
            self._runner.start(task.backend)
        self._ran_last = task.backend
        began = time.monotonic()
        if task.kind is SliceKind.SCRIPTED:
            if task.scripted is not None:
                self._hand(task.scripted, _seconds_left(task, task.seconds, began))
            self._send_handed(math.inf)
            return SliceDone(tally=Tally(), stopped_early=False, seconds=time.monotonic() - began, unsupported={})

        def tell(message: AnyMessage) -> None:
            left = _seconds_left(task, task.shrink_seconds, began)
            if isinstance(message, Caught):
                hurried = task.first_only or left < SECONDS_FOR_SCRIPT
                message = replace(message, script_follows=not hurried and self._is_new(message))
            self._tell(message)
            if isinstance(message, Caught) and message.script_follows:
                self._hand(message, left)
            self._send_handed(0.0)

        part = self._setup.part
        hunt = Hunt(
            task,
            self._runner,
            tell,
            # A failure may not need the features that all drawn cases have.
            capability=drawn_capability(task.backend, replace(part, only=())),
            elsewhere=lambda name: drawn_capability(name, DrawnPart(promised=part.promised)),
            novelty=self._novelty,
            explained=self._runner.explained,
            ledger=self._setup.ledger,
            claim=self._claim,
            deaths=self._deaths,
            stateful=self._stateful,
        )
        return hunt.run(drawn_cases(task.backend, self._setup.guard, task.lean, part=part))

    def _is_new(self, caught: Caught) -> bool:
        """Return whether neither a known cause nor the ledger explains a failure. The script of another can wait."""
        return not caught.cause and reason_of(self._setup.ledger, caught.fingerprint, caught.case) is None

    def _hand(self, caught: Caught, seconds: float) -> None:
        """Make the script of a failure, which runs when those before it have ended."""
        self._handing.append(self._hand_over(caught, self._runner, seconds))

    def _send_handed(self, seconds: float) -> None:
        """Send the failures whose scripts have run, in their order, and start the next script.

        Waits for each script for `seconds`.
        """
        while self._handing:
            handed = self._handing[0].poll(seconds)
            if handed is None:
                return
            self._handing.popleft().close()
            self._tell(handed)


def _seconds_left(task: Slice, limit: float | None, began: float) -> float:
    """Return the part that is left of a slice's `limit`."""
    since = began if task.handed_at is None else task.handed_at
    return math.inf if limit is None else max(0.0, since + limit - time.monotonic())
