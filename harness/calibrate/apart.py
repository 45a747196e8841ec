"""Calibrations in workers like a campaign's: their deaths end no command, and no CUDA context is made here."""

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch

from attnfuzz.harness.calibrate.calibrate import Measured, measure
from attnfuzz.harness.calibrate.sample import CannotCalibrate
from attnfuzz.harness.sandbox.side_by_side import side_by_side
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.nursery import named
from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.harness.workers.supervisor import Workers
from attnfuzz.reference.dtypes import DType

_SECONDS = 900.0
"""Time limit for one step of a calibration: the longest are a fit to many rows, and a case of 65,536 keys."""


class CalibrationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The first request of a calibration; empty requests ask for its next step. The fields are those of `measure`."""

    backend: str
    dtype: DType
    rows: int
    seed: int
    without: tuple[tuple[str, ...], ...] = ()


class ProgressNote(msgspec.Struct, frozen=True, tag=True):
    """A line of progress."""

    text: str


class NoCalibration(msgspec.Struct, frozen=True, tag=True):
    """The reason why there can't be a calibration."""

    reason: str


_steps: Iterator[str | Measured] = iter(())
"""The steps of this worker's calibration."""


def measure_apart(
    requests: Sequence[CalibrationRequest],
    *,
    jobs: int,
    seconds: float | None,
    tell: Callable[[str], None],
) -> Iterator[tuple[CalibrationRequest, Measured | NoCalibration]]:
    """Run `measure` for each request, `jobs` at a time in their own workers. Yields each result when it is there.

    `tell` gets lines of progress, from several threads. After `seconds`, the rest is given up.

    Raises:
        HandlerError, NurseryError, GpuGone: the harness or the GPU failed.
    """
    until = None if seconds is None else time.monotonic() + seconds
    yield from side_by_side(
        requests,
        lambda workers, request: _measured(workers, request, until, tell),
        backend=lambda request: request.backend,
        handler=named(handle),
        jobs=jobs,
    )


def _measured(
    workers: Workers, request: CalibrationRequest, until: float | None, tell: Callable[[str], None]
) -> Measured | NoCalibration:
    name, step = f"{request.backend}, {request.dtype}", msgspec.msgpack.encode(request)
    while True:
        if until is not None and time.monotonic() > until:
            return NoCalibration(f"{name}: no time was left; give more --time, more --jobs or fewer --rows")
        reply = workers.run(step, timeout=_SECONDS)
        if isinstance(reply, Death):
            return NoCalibration(f"{name}: {reply.cause}. Fuzz it first, until it passes")
        match msgspec.msgpack.decode(reply, type=ProgressNote | NoCalibration | Measured, dec_hook=_tensor):
            case ProgressNote(text):
                tell(text)
            case NoCalibration() as none:
                # A kernel that raised may have left anything behind.
                workers.renew()
                return none
            case Measured() as measured:
                return measured
        step = b""


def handle(request: bytes, journal: Journal) -> bytes:
    """Begin a calibration in the worker, or take its next step."""
    del journal
    global _steps  # noqa: PLW0603 - a worker is at one calibration at a time
    if request:
        wanted = msgspec.msgpack.decode(request, type=CalibrationRequest)
        _steps = measure(wanted.backend, wanted.dtype, rows=wanted.rows, seed=wanted.seed, without=wanted.without)
    return msgspec.msgpack.encode(_next_step(), enc_hook=_bytes)


def _next_step() -> ProgressNote | NoCalibration | Measured:
    try:
        step = next(_steps)
    except CannotCalibrate as reason:
        return NoCalibration(str(reason))
    return ProgressNote(step) if isinstance(step, str) else step


def _bytes(values: object) -> bytes:
    """Encode the fp64 values of a tensor for msgspec."""
    assert isinstance(values, torch.Tensor)
    return values.numpy().tobytes()


def _tensor(_: type, data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float64)
