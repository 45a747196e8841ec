"""Entry points of worker processes. The parent passes on the names of these functions and calls none.

This is the one module that imports `inside` for workers, inside of functions: the parent imports this one.
"""

from collections.abc import Callable

from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.any_case import AnyCase


def handle_case(request: bytes, journal: Journal) -> bytes:
    """Answer an encoded Task with an encoded Verdict."""
    from attnfuzz.harness.inside.execute import handle  # noqa: PLC0415 - in the worker alone
    from attnfuzz.harness.inside.explained import explained  # noqa: PLC0415
    from attnfuzz.harness.inside.watched import watched  # noqa: PLC0415

    return handle(request, journal, explained, watched)


def handle_stray(request: bytes, journal: Journal) -> bytes:
    """Answer an encoded StrayRequest."""
    from attnfuzz.harness.inside.strays import handle  # noqa: PLC0415 - in the worker alone

    return handle(request, journal)


def handle_rehearsal(request: bytes, journal: Journal) -> bytes:
    """Answer an encoded Rehearsal."""
    from attnfuzz.harness.backends.rehearsal import handle  # noqa: PLC0415 - in the worker alone

    def run(case: AnyCase, backend: Backend) -> None:
        from attnfuzz.harness.inside.execute import Execution  # noqa: PLC0415 - slow, and needed for trials alone

        Execution(Task(case=case, backend=backend.name), journal.write, backend=backend).run()

    return handle(request, run)


def warm() -> None:
    """Load, before workers are forked, everything that all need."""
    from attnfuzz.harness.inside import execute, explained  # noqa: F401, PLC0415 - in the nursery alone

    execute.warm()


def preload_for_gpu() -> None:
    """Import, before workers are forked, the needs of GPU workers."""
    from attnfuzz.harness.inside.cuda_worker import preload  # noqa: PLC0415 - in the nursery alone

    preload()


def begin_on_gpu(*backends: str) -> None:
    """Create the CUDA context of a worker, and load the needs of `backends`."""
    from attnfuzz.harness.inside.cuda_worker import begin  # noqa: PLC0415 - in the worker alone

    begin(*backends)


def begin_plainly(*backends: str) -> None:
    """Create a CUDA context in this process, without guarded memory, and load the needs of `backends`."""
    from attnfuzz.harness.inside.plainly import begin  # noqa: PLC0415 - in the process that runs the cases alone

    begin(*backends)


def run_plainly(task: Task, write: Callable[[bytes], None], *, unwritten: bool) -> Verdict:
    """Run a case in this process, in memory without guards. `write` gets each launch, as the journal does."""
    from attnfuzz.harness.inside.plainly import run  # noqa: PLC0415 - in the process that runs the cases alone

    return run(task, write, unwritten=unwritten)
