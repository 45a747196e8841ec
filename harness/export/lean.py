"""Cases whose failure does not depend on what floating point buffers hold: with contents that a line can say."""

from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.reference.calls import Buffer, CallCase, Drawn

DEADLY = frozenset({Kind.ILLEGAL_ACCESS, Kind.MISALIGNED, Kind.HANG, Kind.WORKER_DIED})
"""Failures after which nothing is left to look at."""


def lean(calls: CallCase, seen: Observation, runner: Runner) -> CallCase:
    """The calls with normal numbers for contents if they die of the same then, else as they are."""
    if seen.kind not in DEADLY:
        return calls
    buffers = tuple(_redrawn(buffer, seed) for seed, buffer in enumerate(calls.buffers))
    redrawn = replace(calls, buffers=buffers, answer=None)
    if buffers == calls.buffers:
        return calls
    again = next(iter(runner.verdict(redrawn).failures), None)
    same = again is not None and (again.kind, again.kernel, again.place) == (seen.kind, seen.kernel, seen.place)
    return redrawn if same else calls


def _redrawn(buffer: Buffer, seed: int) -> Buffer:
    if buffer.bits is None or not buffer.dtype.torch_dtype.is_floating_point:
        return buffer
    return replace(buffer, bits=None, drawn=Drawn(seed=seed))
