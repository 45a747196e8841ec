"""The noise floor: by how much log-probabilities of right answers differ on one server."""

from collections.abc import Sequence
from statistics import quantiles

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.serve.check import Judged
from attnfuzz.harness.serve.draw import drawn, traces
from attnfuzz.harness.serve.judging import compare_replies
from attnfuzz.harness.serve.target import TestedServer

TRACES = 6
"""Gentle traces that a calibration runs."""

FACTOR = 16.0
"""The floor over the upper quartile of the largest differences of requests: a log-probability of many tokens has
outliers, and a bug that shows in a quarter of the requests must not raise the floor."""

LEAST = 1e-4
"""The least floor above 0: where differences of this size are seen at all, they are noise."""


class NoiseFloor(msgspec.Struct, frozen=True):
    """The largest difference that is allowed: 0 on a server that is `exact` in `requests` of a calibration.

    `seen` is the largest difference of the calibration, which may be that of a bug.
    """

    allowed: float
    requests: int = 0
    seen: float = 0.0
    why: str = ""

    @property
    def words(self) -> str:
        """The floor in a clause."""
        limit = f"{self.allowed:.3g}" if self.allowed else "0: answers must be equal"
        return f"noise floor {limit} ({self.why})"


def calibrate_floor(server: TestedServer, seed: int, given: float | None) -> NoiseFloor:
    """Return the floor that is `given`, promised by the engine, or measured. Raises ServerError or NoAnswer."""
    if given is not None:
        return NoiseFloor(given, why="given")
    if server.surface.exact:
        return NoiseFloor(0.0, why="the engine promises batch invariance")
    largest = list(_differences(server, seed))
    seen = max(largest, default=0.0)
    measured = f"measured on {len(largest)} requests, the largest of which is {seen:.3g}"
    return NoiseFloor(_floor_of(largest), len(largest), seen, measured)


def _floor_of(largest: Sequence[float]) -> float:
    """Derive the floor from the largest differences of requests."""
    quartile = quantiles(largest, n=4)[2] if len(largest) > 1 else max(largest, default=0.0)
    # A difference of the size of a rounding shows that the server rounds by its batch, however seldom.
    rounds = any(0 < each <= LEAST for each in largest)
    return max(FACTOR * quartile, LEAST) if quartile or rounds else 0.0


def _differences(server: TestedServer, seed: int) -> list[float]:
    """Measure the largest difference of each request in gentle traces to itself alone."""
    found: list[float] = []
    # Plain requests alone: an ability of the server may kill it.
    plain = replace(server.surface, can=())
    gentle = traces(plain, server.concurrency, gentle=True)
    for trace in drawn(gentle, number=TRACES, seed_of=seed):
        server.flush()
        for request, sent in zip(trace.requests, server.run(trace), strict=True):
            alone = server.alone(request)
            if sent.reply is not None and alone.reply is not None:
                found.append(compare_replies(request, sent.reply, alone.reply, float("inf")).difference)
    return found


def margin(judged: Judged, floor: NoiseFloor) -> float:
    """Return the largest difference over the allowed one; 0 if none is allowed."""
    return judged.largest / floor.allowed if floor.allowed else 0.0
