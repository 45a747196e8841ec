"""Workers for each kind of device and each release of SGLang, and the share of the GPUs that falls to this process."""

import os
import re
from collections.abc import Iterator

from attnfuzz.harness.workers import core_dumps
from attnfuzz.harness.workers.nursery import Hook
from attnfuzz.harness.workers.pool import Workers
from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.gpu.visible import visible
from attnfuzz.reference.device import Device

_HANDLER = "attnfuzz.harness.inside.execute:handle"
_PRELOAD = ("attnfuzz.harness.inside.execute:warm",)

_SPARES_ON_A_GPU = 2
"""A worker on a GPU takes seconds to begin, so that deaths in quick succession would otherwise wait for it."""


class Teams:
    """Workers that run cases, on the CPU and on one GPU; each team starts when it is first asked for.

    Modules of two releases of SGLang have the same names, so each release has a team of its own on a device.

    With several GPUs visible, number `index` modulo their count is the one; without an index, workers of pytest-xdist
    take theirs from their own number, and others the first.
    """

    def __init__(self, index: int | None = None) -> None:
        self._index = _xdist_number() if index is None else index
        self._teams: dict[tuple[Device, str | None], Workers] = {}

    def of(self, device: Device, backends: tuple[str, ...] = (), release: str | None = None) -> Workers:
        """The workers of a device, for a release of SGLang (as `release_in` a backend's name) or for all else.

        Those of a GPU are made ready for `backends` if the team starts now.
        """
        team = (device, release)
        if team not in self._teams:
            self._teams[team] = self._start(device, backends, release)
        return self._teams[team]

    @property
    def restarts(self) -> int:
        """Workers that died so far."""
        return sum(workers.restarts for workers in self._teams.values())

    def renew(self) -> None:
        """Have each team's next request go to a worker that has not been asked anything."""
        for workers in self._teams.values():
            workers.renew()

    def close(self) -> None:
        """End all workers."""
        for workers in self._teams.values():
            workers.close()

    def _start(self, device: Device, backends: tuple[str, ...], release: str | None) -> Workers:
        spares = 1 if device is Device.CPU else _SPARES_ON_A_GPU
        return workers_on(device, _HANDLER, backends, release=release, index=self._index, spares=spares)


def workers_on(
    device: Device,
    handler: str,
    backends: tuple[str, ...] = (),
    *,
    release: str | None = None,
    index: int = 0,
    spares: int = 0,
) -> Workers:
    """Workers of a device with a handler of their own; the GPU of this index is theirs, made ready for `backends`.

    They may have a release of SGLang, by its name.
    """
    if device is Device.CPU:
        return Workers(handler, (*_PRELOAD, *_importing(release, "load_release")), spares)
    return Workers(
        handler,
        (*_PRELOAD, "attnfuzz.harness.inside.cuda_worker:preload", *_importing(release, "load_release_for_hopper")),
        spares,
        begin="attnfuzz.harness.inside.cuda_worker:begin",
        arguments=backends,
        environment={**_one_gpu(index), **core_dumps.settings()},
    )


def _importing(release: str | None, function: str) -> Iterator[Hook]:
    """What is imported before workers are forked: a release starts no thread and asks for no GPU then."""
    if release is not None:
        yield f"attnfuzz.harness.inside.sglang_worker:{function}", release


def _one_gpu(index: int) -> dict[str, str]:
    """The environment of a process that sees but one of the GPUs that this one sees."""
    gpus = visible()
    if not gpus:
        return {}
    # FlashInfer names its cache for all architectures that it sees: the modules were compiled for all GPUs.
    architectures = build_record.architectures()
    return {"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)].uuid, build_record.ARCH_LIST: architectures}


def _xdist_number() -> int:
    """The N of pytest-xdist's worker gwN; 0 in any other process."""
    found = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    return int(found[1]) if found else 0
