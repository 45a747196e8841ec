"""Run a calibration in a worker like a campaign's: its death ends no command, and no CUDA context is made here."""

from collections.abc import Callable, Iterator

import msgspec
import torch

from attnfuzz.harness.calibrate.calibrate import Measured, measure
from attnfuzz.harness.calibrate.sample import CannotCalibrate
from attnfuzz.harness.sandbox.teams import team_of, workers_of
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.nursery import named
from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.reference.dtypes import DType

_SECONDS = 900.0
"""Time limit for one step of a calibration: the longest are a fit to many rows, and a case of 65,536 keys."""


class CalibrationRequest(msgspec.Struct, frozen=True):
    """The first request of a calibration; empty requests ask for its next step."""

    backend: str
    dtype: DType
    rows: int
    seed: int


class ProgressNote(msgspec.Struct, frozen=True, tag=True):
    """A line of progress."""

    text: str


class NoCalibration(msgspec.Struct, frozen=True, tag=True):
    """The reason why there can't be a calibration."""

    reason: str


_steps: Iterator[str | Measured] = iter(())
"""The steps of this worker's calibration."""


def measure_apart(name: str, dtype: DType, *, rows: int, seed: int, tell: Callable[[str], None]) -> Measured:
    """Run `measure` in a worker. `tell` gets lines of progress.

    Raises:
        UnknownBackend, BackendFileError, CannotCalibrate: as `measure`; the last also if the worker dies.
        HandlerError, NurseryError: the harness failed.

    """
    request = msgspec.msgpack.encode(CalibrationRequest(name, dtype, rows, seed))
    with workers_of(team_of(name), named(handle), name) as workers:
        while True:
            reply = workers.run(request, timeout=_SECONDS)
            if isinstance(reply, Death):
                raise CannotCalibrate(f"{name}, {dtype}: {reply.cause}. Fuzz it first, until it passes")
            match msgspec.msgpack.decode(reply, type=ProgressNote | NoCalibration | Measured, dec_hook=_tensor):
                case ProgressNote(text):
                    tell(text)
                case NoCalibration(reason):
                    raise CannotCalibrate(reason)
                case Measured() as measured:
                    return measured
            request = b""


def handle(request: bytes, journal: Journal) -> bytes:
    """Begin a calibration in the worker, or take its next step."""
    del journal
    global _steps  # noqa: PLW0603 - a worker is at one calibration at a time
    if request:
        wanted = msgspec.msgpack.decode(request, type=CalibrationRequest)
        _steps = measure(wanted.backend, wanted.dtype, rows=wanted.rows, seed=wanted.seed)
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
