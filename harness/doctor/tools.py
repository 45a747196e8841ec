"""Tools of NVIDIA that explain faults on a GPU, tried on planted ones."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from attnfuzz.harness import entry
from attnfuzz.harness.doctor.measurement import Measurement, judged, not_measured
from attnfuzz.harness.doctor.strays import STRAYS
from attnfuzz.harness.sandbox.teams import Team, workers_of
from attnfuzz.harness.workers import gpu_core
from attnfuzz.harness.workers.nursery import named
from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.kernels.building.library_cache import environment
from attnfuzz.reference.device import Device

_SECONDS = 60.0
"""Time limit of a fault, for which the driver writes a dump."""


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
