"""NVIDIA's tools on an exported script: compute-sanitizer's memcheck, initcheck and racecheck, and GPU core dumps.

Command lines follow the Compute Sanitizer manual; the parsers follow it and published outputs of real runs. Of the
tools, only memcheck has been run, on an H200.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from attnfuzz.harness.export import CannotExport, Target, export_script
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.workers import gpu_core
from attnfuzz.reference.case_file import AnyCase

SECONDS = 300.0
"""Time limit of one tool: instrumented kernels are slower by one to two orders of magnitude."""

_TOOLS = ("compute-sanitizer", "cuda-gdb")

CHECKS = ("memcheck", "initcheck", "racecheck")

SEE_EVERY_TENSOR = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
"""Make torch allocate each tensor from CUDA: in torch's pool, tools can't see a tensor's end."""

_PRINTED = 10
"""Most errors that a tool prints: the first explains the others."""


@dataclass(frozen=True)
class Report:
    """Results of tools, a sentence each, and tools that could not run, each with the reason."""

    said: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def why_missing(tool: str) -> str | None:
    """Why a tool can't be run here; None if it can."""
    if not torch.cuda.is_available():
        return "there is no GPU"
    if shutil.which(tool) is None:
        return "it is not on the PATH: the CUDA toolkit has it"
    return None


def sanitizer_command(check: str, script: Path) -> list[str]:
    """Run a script under one of the CHECKS, its child processes as well."""
    options = ["--target-processes", "all", "--print-limit", str(_PRINTED)]
    if check == "memcheck":
        # cuda-bindings looks up driver functions that may be missing, which would be printed before the fault.
        options += ["--report-api-errors", "no"]
    return ["compute-sanitizer", "--tool", check, *options, sys.executable, str(script)]


def core_environment(core: Path) -> dict[str, str]:
    """The environment that makes the driver write a GPU core dump to `core` on a kernel's exception."""
    return {"CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1", "CUDA_COREDUMP_FILE": str(core)}


def ask_tools(case: AnyCase, runner: Runner, seconds: float = SECONDS) -> Report:
    """Run a case's exported script under every available tool."""
    absent = {tool: why for tool in _TOOLS if (why := why_missing(tool)) is not None}
    missing = [f"{tool} was not run: {why}." for tool, why in absent.items()]
    if len(absent) == len(_TOOLS):
        return Report(missing=tuple(missing))
    try:
        script = export_script(case, runner, target=Target.FLASHINFER)
    except CannotExport as reason:
        return Report(missing=(f"NVIDIA's tools were not run: {reason}.",))
    said: list[str] = []
    with tempfile.TemporaryDirectory(prefix="attnfuzz-triage-") as folder:
        path, core = Path(folder) / "repro.py", Path(folder) / "kernel.nvcudmp"
        path.write_text(script)
        if "compute-sanitizer" not in absent:
            for check in CHECKS:
                output = _run(sanitizer_command(check, path), SEE_EVERY_TENSOR, seconds)
                said.append(f"{check}: {in_words(output)}" if output is not None else _too_long(check, seconds))
        if "cuda-gdb" not in absent:
            said.append(f"GPU core dump: {_core_dump(path, core, seconds)}")
    return Report(tuple(said), tuple(missing))


def _core_dump(script: Path, core: Path, seconds: float) -> str:
    if _run([sys.executable, str(script)], core_environment(core), seconds) is None:
        return _too_long("the script", seconds)
    if not core.exists():
        return "no kernel ended with an exception"
    output = _run(gpu_core.command(core), {}, seconds)
    return _too_long("cuda-gdb", seconds) if output is None else gpu_core.understood(output).words


def _too_long(name: str, seconds: float) -> str:
    return f"{name} was stopped after {seconds:g} s"


def _run(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str | None:
    """A command's output; None if it takes too long, when it is killed with its children."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    return output


_ERROR = re.compile(
    r"(?P<access>Invalid __\w+__ \w+ of size [\d,]+(?: bytes)?"
    r"|Misaligned __\w+__ \w+ of size [\d,]+(?: bytes)?"
    r"|Uninitialized __\w+__ memory read of size [\d,]+(?: bytes)?"
    r"|Race reported between \w+ access at .+)"
)
_AT = re.compile(r"^at (?P<kernel>.+)$")
_SIGNATURE = re.compile(r"(?<=[\w>])\(.*\)")
_BY = re.compile(r"^by (?P<thread>thread \([\d,]+\) in block \([\d,]+\))")
_NEAREST = re.compile(
    r"^and is (?P<distance>[\d,]+) bytes (?P<side>after|before) the nearest allocation at \S+ of size (?P<size>[\d,]+)"
)
_OTHER = re.compile(r"^and (?P<other>\w+ access at .+)$")
_SUMMARY = re.compile(
    r"(?:ERROR SUMMARY: (?P<errors>[\d,]+) error(?!s? were not printed)"
    r"|RACECHECK SUMMARY: (?P<hazards>[\d,]+) hazard)"
)


def in_words(output: str) -> str:
    """The output of one of the CHECKS as a clause: its first error, and their number."""
    lines = [line.removeprefix("=========").strip() for line in output.splitlines() if line.startswith("=========")]
    summary = next((found for line in reversed(lines) if (found := _SUMMARY.search(line))), None)
    if summary is None:
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "nothing was printed")
        return f"it did not finish: {last.strip()}"
    count = summary["errors"] or summary["hazards"]
    first = next((index for index, line in enumerate(lines) if _ERROR.search(line)), None)
    if first is None:
        return "no error" if count == "0" else f"{count} errors of the CUDA API, none of a kernel's memory"
    return ", ".join([*_details(lines[first:]), f"the first of {count}"])


def _details(lines: Sequence[str]) -> Iterator[str]:
    """The parts of the error that begins in the first line."""
    found = _ERROR.search(lines[0])
    assert found is not None
    yield found["access"]
    for line in lines[1:]:
        if not line or _ERROR.search(line):
            return
        if at := _AT.match(line):
            yield f"at {_SIGNATURE.sub('', at['kernel'])}"
        elif by := _BY.match(line):
            yield f"by {by['thread']}"
        elif near := _NEAREST.match(line):
            yield f"{near['distance']} bytes {near['side']} an allocation of {near['size']} bytes"
        elif other := _OTHER.match(line):
            yield f"and {other['other']}"
