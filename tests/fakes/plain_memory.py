"""Stands for a worker: runs a Task on memory without guards. The nursery imports it by its name."""

import msgspec

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.memory.guarded import PlainMemory
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.task import Task
from attnfuzz.reference.case_types import decode_any


def handle(request: bytes, journal: Journal) -> bytes:
    """Answer an encoded Task with an encoded Verdict."""
    task = msgspec.json.decode(request, type=Task, dec_hook=decode_any)
    return msgspec.json.encode(Execution(task, journal.write, memory=PlainMemory(task.case.outputs)).run())
