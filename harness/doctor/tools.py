"""Tools of NVIDIA that explain faults on a GPU, tried on planted ones."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from attnfuzz.harness import entry
from attnfuzz.harness.doctor.measurement import Measurement, judged, not_measured
from attnfuzz.harness.doctor.strays import STRAYS
from attnfuzz.harness.sandbox.teams import Team, workers_of
from attnfuzz.harness.sanitizer import planted
from attnfuzz.harness.sanitizer.run import COMMAND, missing
from attnfuzz.harness.verdict.sanitizer_tool import SanitizerTool
from attnfuzz.harness.workers import gpu_core
from attnfuzz.harness.workers.nursery import named
from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.kernels.building.library_cache import environment
from attnfuzz.kernels.cuda import hazards, nvcc
from attnfuzz.reference.device import Device

_SECONDS = 60.0
"""Time limit of a fault, for which the driver writes a dump, and of a process under compute-sanitizer."""


def core_dumps() -> Iterator[Measurement]:
    """Make a stray read with core dumps enabled, and yield the fault that its dump records."""
    request = msgspec.json.encode(STRAYS[0].on(Device.CUDA))
    with tempfile.TemporaryDirectory() as folder, environment(**{gpu_core.VARIABLE: folder}):
        with workers_of(Team(Device.CUDA), named(entry.handle_stray), None) as workers:
            answer = workers.run(request, timeout=_SECONDS)
        dumps = list(Path(folder).iterdir())
        if not isinstance(answer, Death) or answer.core_dump is None:
            death = f"the worker ended: {answer.cause}" if isinstance(answer, Death) else "the worker did not end"
            yield judged("core dumps", f"none of a stray read ({death}; {len(dumps)} files)", works=False)
            return
        core = gpu_core.read(answer.core_dump)
        if core.illegal:
            yield judged("core dumps", core.words, works=True)
        else:
            yield not_measured("core dumps", f"one was written; {core.words}")


def sanitizer_tools() -> Iterator[Measurement]:
    """Run a planted mistake under each tool of compute-sanitizer. Yields one row."""
    if (reason := missing()) is not None:
        yield not_measured(COMMAND, reason)
        return
    nvcc.build((hazards.SOURCE,))
    with ThreadPoolExecutor(len(SanitizerTool)) as pool:
        answers = dict(
            zip(SanitizerTool, pool.map(lambda tool: planted.found(tool, _SECONDS), SanitizerTool), strict=True)
        )
    seen = ", ".join(tool for tool, why_not in answers.items() if not why_not)
    missed = "; ".join(f"{tool}: {why_not}" for tool, why_not in answers.items() if why_not)
    words = f"planted mistakes reported by {seen or 'no tool'}"
    yield judged(COMMAND, f"{words}; {missed}" if missed else words, works=not missed)
