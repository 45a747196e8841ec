"""A run of a case of which the plan and the executed lines are recorded, perhaps with a mutant of the backend."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from attnfuzz.harness.inside.execute import Execution, backend_of
from attnfuzz.harness.inside.plan_digest import PlanDigest
from attnfuzz.harness.mutation.lines import Lines, executed_lines
from attnfuzz.harness.mutation.swap import Swap
from attnfuzz.harness.verdict.failures import Verdict, Watched
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.interface.backend import Bench, Session
from attnfuzz.reference.any_case import AnyCase

_MORE_MEMORY = 4 << 30
"""Bytes of memory that a mutant may take beyond those of its worker."""

_LARGEST_FILE = 1 << 30
"""Bytes of a file that a mutant may write."""


def watched(task: Task, write: Callable[[bytes], None]) -> Verdict:
    """Run a task that asks for it. The verdict has `watched`."""
    assert task.watch is not None
    mutant, digest = task.watch.mutant, PlanDigest()
    swap = None if mutant is None else Swap(mutant)
    backend: Any = backend_of(task.backend)
    if swap is not None:
        backend = _Mutated(backend, swap)
    places = task.watch.places
    with ExitStack() as around:
        lines: Lines = around.enter_context(executed_lines(places)) if places else {}
        if swap is not None:
            around.enter_context(_bounded())
        verdict = Execution(task, write, backend=backend, digest=digest).run()
    recorded = Watched(
        plan=digest.hexdigest(),
        parts=tuple(digest.parts) if task.watch.parts else (),
        lines={file: tuple(sorted(found)) for file, found in lines.items()},
        made=swap is None or swap.applied,
    )
    return replace(verdict, watched=recorded)


class _Mutated:
    """A backend whose code is changed while it opens a session, and in each forward."""

    def __init__(self, backend: Any, swap: Swap) -> None:
        self._backend, self._swap = backend, swap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def open(self, case: AnyCase, bench: Bench) -> Session:
        """Open a session of the changed backend."""
        with self._swap.made():
            return _Session(self._backend.open(case, bench), self._swap)


class _Session:
    """A session whose forwards run changed code."""

    def __init__(self, session: Session, swap: Swap) -> None:
        self._session, self._swap = session, swap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def forward(self, index: int) -> Any:
        """Run one step."""
        with self._swap.made():
            return self._session.forward(index)


@contextmanager
def _bounded() -> Iterator[None]:
    """Limit memory and files of this process: a changed bound may ask for any amount of either."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limits = {
        resource.RLIMIT_DATA: pages * os.sysconf("SC_PAGE_SIZE") + _MORE_MEMORY,
        resource.RLIMIT_FSIZE: _LARGEST_FILE,
    }
    before = {kind: resource.getrlimit(kind) for kind in limits}
    for kind, limit in limits.items():
        _, hard = before[kind]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        for kind, own in before.items():
            resource.setrlimit(kind, own)
