"""Cases run and judged in this process: the baseline without isolation and guards. As a script, it reads stdin."""

import sys

import msgspec
import torch

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.memory.guarded import PlainMemory
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.reference.case import Case


def verdict_in_process(case: Case) -> Verdict:
    """Run and judge `case` on plain memory without a journal. A fault would end this process."""
    return Execution(Task(case=case, backend=case.backend), lambda _: None, memory=PlainMemory(case.outputs)).run()


def use_one_thread() -> None:
    """Make torch compute in one thread, as it does in a worker."""
    torch.set_num_threads(1)


def main() -> None:
    """Read the JSON of one case and write the JSON of its verdict, in a process that does nothing else."""
    use_one_thread()
    case = msgspec.json.decode(sys.stdin.buffer.read(), type=Case)
    sys.stdout.buffer.write(msgspec.json.encode(verdict_in_process(case)))


if __name__ == "__main__":
    main()
