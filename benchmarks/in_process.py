"""Cases run and judged in this process: the baseline without isolation and guards. As a script, it reads stdin."""

import math
import sys
import time
from collections.abc import Iterable

import msgspec
import torch

from attnfuzz.harness.inside.execute import Execution, backend_of
from attnfuzz.harness.memory.guarded import PlainMemory
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case


def verdict_in_process(case: Case) -> Verdict:
    """Run and judge `case` on plain memory without a journal. A fault would end this process."""
    return Execution(Task(case=case, backend=case.backend), lambda _: None, memory=PlainMemory(case.outputs)).run()


def judged_rows(cases: Iterable[AnyCase], *, seconds: float, most: float = math.inf) -> tuple[str, ...]:
    """Judge cases of one backend until the time is over or `most` rows were judged. Prints each failure.

    Returns the numbers of cases, rows, rows per second and failures, and the largest margin of each tier.
    """
    begun = time.monotonic()
    done = rows = failures = 0
    margins: dict[str, float] = {}
    for case in cases:
        if rows >= most or time.monotonic() - begun > seconds:
            break
        task = Task(case=case, backend=case.backend)
        verdict = Execution(task, lambda _: None, backend=backend_of(case.backend)).run()
        done, rows, failures = done + 1, rows + verdict.rows, failures + len(verdict.failures)
        for tier, margin in verdict.margins.items():
            margins[tier] = max(margin, margins.get(tier, 0.0))
        for failure in verdict.failures:
            print(case, failure, flush=True)
    shown = ", ".join(f"{tier} {margin:.2f}" for tier, margin in sorted(margins.items()))
    return f"{done:,}", f"{rows:,}", f"{rows / (time.monotonic() - begun):,.0f}", str(failures), shown


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
