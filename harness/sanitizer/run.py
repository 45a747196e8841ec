"""Running cases under a tool of compute-sanitizer."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.teams import environment_of_gpu, team_of
from attnfuzz.harness.sanitizer.process import Assignment
from attnfuzz.harness.sanitizer.reports import Log, Report, distinct, parse
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.sanitizer_tool import SanitizerTool
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.cuda import toolkit
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case, Launch, Pace
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError

COMMAND: Final = "compute-sanitizer"

_OPTIONS: Final = (
    # Without a host backtrace a report has five lines. Inlined functions are device frames.
    *("--show-backtrace", "device", "--print-limit", "1000"),
    # A report comes before the next mark of the process.
    "--force-blocking-launches",
    # Importing libraries starts commands, such as nvidia-smi.
    *("--target-processes", "application-only"),
    *("--launch-timeout", "60", "--require-cuda-init", "no", "--check-exit-code", "no"),
    # The process goes on after an illegal access.
    *("--destroy-on-device-error", "kernel"),
)

_OF_TOOLS: Final = {
    SanitizerTool.RACECHECK: ("--racecheck-report", "analysis"),
    SanitizerTool.SYNCCHECK: (),
    # Copies to the host read rows that no kernel has to write.
    SanitizerTool.INITCHECK: ("--check-api-memory-access", "no"),
    # Probing CUDA's functions by name fails for those that a driver lacks.
    SanitizerTool.MEMCHECK: ("--report-api-errors", "no"),
}

_OURS: Final = ("write_runs", "compare_runs", "hold_until")
"""Kernels of guarded memory (kernels/cuda/guards.cu), which are not under test."""

_UNCACHED: Final = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Gives each tensor an allocation of its own."""

_BY_ALLOCATION: Final = (SanitizerTool.INITCHECK, SanitizerTool.MEMCHECK)
"""Tools that know memory by its allocations."""

_SECONDS_PER_LOOK: Final = 0.2
_SECONDS_TO_DIE: Final = 5.0


class NotSanitized(UserError):
    """compute-sanitizer is missing, or the machine refuses it. The message is one line."""


@dataclass(frozen=True)
class Sanitized:
    """The result of a run: the number of cases that ended, reports of each, and why the others did not, "" if all did.

    `unsupported` has reasons by the index of a case.
    """

    ended: int
    reports: tuple[tuple[Report, ...], ...]
    unsupported: dict[int, str]
    why_not_all: str
    seconds: float


def missing() -> str | None:
    """Return why there is no compute-sanitizer here, in one line, or None."""
    return None if _command() else f"{COMMAND} is not on PATH: it comes with NVIDIA's CUDA toolkit"


def _command() -> str | None:
    if found := shutil.which(COMMAND):
        return found
    if toolkit.missing() is not None:
        return None
    beside = toolkit.nvcc().with_name(COMMAND)
    return str(beside) if beside.exists() else None


def prepare(backends: Sequence[str], progress: Callable[[str], None]) -> None:
    """Check that backends run on a GPU here, and compile their needs. Raises NotSanitized, and as `prepare` does."""
    if (reason := missing()) is not None:
        raise NotSanitized(reason)
    for name in dict.fromkeys(backends):
        backend = resolve(name)
        if backend.capability.device is not Device.CUDA:
            raise NotSanitized(f"{name} runs on the CPU, and {COMMAND} checks kernels on a GPU: name another --backend")
        if (lacking := backend.missing()) is not None:
            raise NotSanitized(f"{name} can't run here: {lacking}")
        backend.prepare(progress)


def run(
    tool: SanitizerTool,
    cases: Sequence[AnyCase],
    *,
    seconds: float,
    contract: str = "declared",
    stop: threading.Event | None = None,
) -> Sanitized:
    """Run cases on their backends under a tool, in one process, for at most `seconds`, or until `stop` is set.

    Tensors are torch's own memory: the tool knows no memory that is mapped by itself as one allocation. For initcheck,
    tensors without content stay unwritten, because poison is a write.

    Raises:
        NotSanitized: it is missing, or ended before any case began, or the cases are of several releases.
    """
    began = time.monotonic()
    tasks = tuple(Task(case=prompt(case), backend=case.backend, strict=contract == "strict") for case in cases)
    preload = {release for case in cases if (release := team_of(case.backend).release)}
    if len(preload) > 1:
        raise NotSanitized(f"{COMMAND} runs backends of one release at a time: name fewer --backend")
    assignment = Assignment(tasks=tasks, unwritten=tool is SanitizerTool.INITCHECK, preload=tuple(preload))
    # torch can't allocate during a capture without its cache.
    uncached = tool in _BY_ALLOCATION and not any(map(captures, cases))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases.json"
        file.write_bytes(msgspec.json.encode(assignment))
        log, status = under(tool, ["attnfuzz.harness.sanitizer.process", str(file)], seconds, uncached, stop)
    if not log.ended and not log.reports and status is not None:
        raise NotSanitized(f"{COMMAND} --tool {tool} ran no case (exit code {status}): {log.last_words}")
    left = len(cases) - len(log.ended)
    why = "" if not left else f"not within {seconds:.0f} s" if status is None else f"it ended with code {status}"
    reports = tuple(tuple(each for each in log.reports if each.case == index) for index in range(len(cases)))
    return Sanitized(len(log.ended), reports, log.unsupported, why, time.monotonic() - began)


def under(
    tool: SanitizerTool, module: Sequence[str], seconds: float, uncached: bool, stop: threading.Event | None = None
) -> tuple[Log, int | None]:
    """Run a module, with its arguments, under a tool, on the first visible GPU.

    With `uncached`, torch makes an allocation for each tensor. Returns the parsed output and the exit code, None if the
    process was killed. Raises NotSanitized.
    """
    command = _command()
    if command is None:
        raise NotSanitized(f"{missing()}")
    environment = {**os.environ, **environment_of_gpu(0), **(_UNCACHED if uncached else {})}
    with tempfile.TemporaryFile() as output:
        status = _run([command, *options(tool), sys.executable, "-m", *module], environment, output, seconds, stop)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return parse(text.splitlines()), status


def options(tool: SanitizerTool) -> tuple[str, ...]:
    """Return the options of a tool. Writes of kernels that are left out would not count as writes for initcheck."""
    left_out = () if tool is SanitizerTool.INITCHECK else _OURS
    excluded = (part for name in left_out for part in ("--kernel-name-exclude", f"kernel_substring={name}"))
    return ("--tool", tool, *_OPTIONS, *_OF_TOOLS[tool], *excluded)


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes],
    seconds: float,
    stop: threading.Event | None,
) -> int | None:
    """Run a command with its output in a file. Returns its exit code; None if its time was over, or `stop` was set."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until and not (stop is not None and stop.is_set()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(_SECONDS_PER_LOOK, seconds))
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process within a driver that hangs does not end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_DIE)


def prompt(case: AnyCase) -> AnyCase:
    """Return a case without the late device, which waits for a host that blocking launches hold."""
    return case.having(pace=Pace.PROMPT) if isinstance(case, Case) else case


def captures(case: AnyCase) -> bool:
    """Return whether a case captures graphs."""
    return isinstance(case, Case) and any(step.launch is not Launch.EAGER for step in case.steps)


def observations(reports: Sequence[Report], tool: SanitizerTool) -> list[Observation]:
    """Return a failure for each distinct report of a case, except reports on kernels of guarded memory."""
    return [
        Observation(
            kind=report.kind,
            place=report.place,
            message="\n".join([f"compute-sanitizer --tool {tool}, {times:,} reports like this", *report.lines]),
            step=-1 if report.launch is None else report.launch.step,
            mode="" if report.launch is None else report.launch.mode,
            kernel=report.kernel,
        )
        for report, times in distinct(reports)
        if report.kernel not in _OURS
    ]
