"""Teams: workers for each device and each release of an engine, and the GPU that this process uses."""

import os
import re
from typing import NamedTuple

from attnfuzz.harness import entry
from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.workers import gpu_core
from attnfuzz.harness.workers.nursery import named
from attnfuzz.harness.workers.supervisor import Workers
from attnfuzz.kernels.cuda.visible import visible
from attnfuzz.kernels.interface.toolchain import toolchains
from attnfuzz.reference.device import Device

_PRELOAD = (named(entry.warm),)

_SPARES_ON_A_GPU = 2
"""A GPU worker takes seconds to start, for which deaths in quick succession would have to wait."""


_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""The number of hardware queues of a context. Eight contexts at once take 0.8 s each on an H200, 0.4 s with two queues
(docs/results/gpu.md). Kernels on more streams than queues may wait for each other.
"""


class Team(NamedTuple):
    """The key of a group of workers: their device, and the import of an engine's release, if any."""

    device: Device
    release: tuple[str, ...] = ()


class Teams:
    """Workers that run cases, on the CPU and on one GPU. Each team starts on first use.

    Two releases of an engine may have modules of the same names, so each has its own team on a device. Among several
    visible GPUs, number `index` modulo their count is used. Without an index, a worker of pytest-xdist uses its own
    number, and other processes the first GPU.
    """

    def __init__(self, index: int | None = None) -> None:
        self._index = _xdist_number() if index is None else index
        self._teams: dict[Team, Workers] = {}

    def of(self, team: Team, backend: str | None = None) -> Workers:
        """Return the workers of a team. Those that start on a GPU from now on are made ready for `backend`.

        They are not made ready for all backends of a campaign, because jobs wait for workers to start
        (docs/explanation/performance.md, Deaths).
        """
        if team not in self._teams:
            spares = 1 if team.device is Device.CPU else _SPARES_ON_A_GPU
            self._teams[team] = workers_of(team, named(entry.handle_case), backend, index=self._index, spares=spares)
        elif team.device is not Device.CPU and backend is not None:
            self._teams[team].arguments = (backend,)
        return self._teams[team]

    @property
    def restarts(self) -> int:
        """The number of workers that died so far."""
        return sum(workers.restarts for workers in self._teams.values())

    def renew(self) -> None:
        """Use a fresh worker of each team for the next request."""
        for workers in self._teams.values():
            workers.renew()

    def close(self) -> None:
        """Stop all workers."""
        for workers in self._teams.values():
            workers.close()


def team_of(backend: str) -> Team:
    """Return the team whose workers run the named backend. Raises like `resolve`."""
    engine = engine_of(backend)
    device = resolve(backend).capability.device
    return Team(device) if engine is None else Team(device, engine.preload(engine.team(backend), device))


def workers_of(team: Team, handler: str, backend: str | None = None, *, index: int = 0, spares: int = 0) -> Workers:
    """Return workers of a team with a separate handler, on the GPU of this index, made ready for `backend`."""
    release = [team.release] if team.release else []
    if team.device is Device.CPU:
        return Workers(handler, (*_PRELOAD, *release), spares)
    return Workers(
        handler,
        (*_PRELOAD, named(entry.preload_for_gpu), *release),
        spares,
        begin=named(entry.begin_on_gpu),
        arguments=() if backend is None else (backend,),
        environment={**environment_of_gpu(index), **gpu_core.settings()},
    )


def environment_of_gpu(index: int) -> dict[str, str]:
    """Return the environment of a process that sees only one of this process's GPUs."""
    gpus = visible()
    if not gpus:
        return {}
    compiled = {name: value for toolchain in toolchains() for name, value in toolchain.environment().items()}
    return {"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)].uuid, _QUEUES: os.environ.get(_QUEUES, "2"), **compiled}


def _xdist_number() -> int:
    """Return the N of pytest-xdist's worker gwN, or 0 in any other process."""
    found = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    return int(found[1]) if found else 0
