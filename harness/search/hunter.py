"""A job's work on slices, however they arrive: it holds the workers, and the state kept between slices."""

import math
import time
from collections.abc import Callable
from typing import Self

from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, JobSetup, Slice, SliceDone
from attnfuzz.harness.search.novelty import Novelty
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.device import Device
from attnfuzz.strategies.coverage import pair_bits, pairs_in

Export = Callable[[Caught, Runner], str | None]
"""Returns a script of a failure, or None if it can't be made."""

SECONDS_PER_SCRIPT = {Device.CPU: 3.0, Device.CUDA: 10.0}
"""Time to make a script, which runs the case once or twice. On a GPU, each death costs seconds while others occur."""

SECONDS_TO_HANG = 65.0
"""Time to make a script of a case that hangs."""


class Hunter:
    """Runs slices one at a time, and sends their messages. Raises Runner's errors.

    `export` makes scripts here, where workers are ready, so that the main process does not wait for them.
    """

    def __init__(
        self, setup: JobSetup, tell: Callable[[AnyMessage], None], export: Export = lambda _caught, _runner: None
    ) -> None:
        self._setup = setup
        self._tell = tell
        self._export = export
        self._novelty = Novelty(pair_bits, pairs_in)
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
        """Stop the workers."""
        self._runner.close()

    def run(self, task: Slice) -> SliceDone:
        """Run a slice to its end, in a worker that has run no other backend.

        A kernel that corrupts its process, such as the heap, may make another kernel fail later. On a GPU, workers take
        seconds to start, and are shared.
        """
        capability = resolve(task.backend).capability
        if task.backend != self._ran_last and capability.device is Device.CPU:
            self._runner.start(task.backend)
        self._ran_last = task.backend

        until = math.inf
        if task.script_seconds is not None:
            until = (time.monotonic() if task.handed_at is None else task.handed_at) + task.script_seconds

        def tell(message: AnyMessage) -> None:
            if isinstance(message, Caught) and not task.first_only and _has_time(message, capability.device, until):
                message = replace(message, script=self._export(message, self._runner))
            self._tell(message)

        hunt = Hunt(
            task,
            self._runner,
            tell,
            capability=capability,
            elsewhere=lambda name: resolve(name).capability,
            novelty=self._novelty,
            explained=self._runner.explained,
            ledger=self._setup.ledger,
        )
        return hunt.run(drawn_cases(task.backend, self._setup.guard, task.lean))


def _has_time(caught: Caught, device: Device, until: float) -> bool:
    """Return whether a script can be made before `until`, on the monotonic clock."""
    takes = SECONDS_TO_HANG if caught.observation.kind is Kind.HANG else SECONDS_PER_SCRIPT[device]
    return time.monotonic() + takes < until
