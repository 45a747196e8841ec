"""The process that runs under compute-sanitizer: cases of a file, one after another. Run as a module, with its path."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from attnfuzz.harness import entry
from attnfuzz.harness.sanitizer.marks import CaseMark, LaunchMark
from attnfuzz.harness.workers.journal import LaunchRecord
from attnfuzz.harness.workers.nursery import resolved
from attnfuzz.harness.workers.task import Task
from attnfuzz.reference.case_types import decode_any


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Cases to run. With `unwritten`, tensors without content stay as allocated, instead of being filled.

    `preload` are functions to call first, each as "module:function" and its arguments.
    """

    tasks: tuple[Task, ...]
    unwritten: bool
    preload: tuple[tuple[str, ...], ...] = ()


def main(arguments: Sequence[str]) -> None:
    """Run the cases, and print a mark before each, at each launch, and after each."""
    (path,) = arguments
    assignment = msgspec.json.decode(Path(path).read_bytes(), type=Assignment, dec_hook=decode_any)
    for function, *given in assignment.preload:
        resolved(function)(*given)
    entry.begin_plainly(*dict.fromkeys(task.backend for task in assignment.tasks))
    for index, task in enumerate(assignment.tasks):
        _print(CaseMark(case=index, begins=True))

        def journal(written: bytes, index: int = index) -> None:
            if written:
                launch = LaunchRecord.decode(written)
                _print(CaseMark(case=index, launch=LaunchMark(launch.kernel, launch.step, launch.mode)))

        verdict = entry.run_plainly(task, journal, unwritten=assignment.unwritten)
        _print(CaseMark(case=index, unsupported=verdict.unsupported))


def _print(mark: CaseMark) -> None:
    # One write, so that no report ends up within a line.
    sys.stdout.write(f"{mark.line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
