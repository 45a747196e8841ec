"""Planted accesses outside of tensors, each of which the harness must detect."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from attnfuzz.harness import entry
from attnfuzz.harness.doctor.measurement import Measurement, judged
from attnfuzz.harness.sandbox.teams import Team, workers_of
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers.nursery import named
from attnfuzz.harness.workers.postmortem import Death, explain
from attnfuzz.harness.workers.stray_request import StrayRequest
from attnfuzz.harness.workers.supervisor import Workers
from attnfuzz.reference.case import Guard
from attnfuzz.reference.device import Device

_SECONDS = 30.0
"""Time limit of one access, which takes milliseconds."""

_TENSOR = "block_tables"
"""Its 96 bytes are no multiple of a page, so there is slack on the side without a guard."""


class PlantedStray(NamedTuple):
    """A kind of access: where it is, whether it writes, and the failure by which it must show."""

    words: str
    guard: Guard
    offset: int
    from_end: bool
    write: bool
    shows_as: Kind

    def on(self, device: Device) -> StrayRequest:
        """Return the request for it."""
        return StrayRequest(
            device=device,
            guard=self.guard,
            tensor=_TENSOR,
            offset=self.offset,
            from_end=self.from_end,
            write=self.write,
        )


STRAYS: Final[Sequence[PlantedStray]] = (
    PlantedStray("read after the end", Guard.RIGHT, 0, True, False, Kind.ILLEGAL_ACCESS),
    PlantedStray("write after the end", Guard.RIGHT, 0, True, True, Kind.ILLEGAL_ACCESS),
    PlantedStray("read before the start", Guard.LEFT, -2, False, False, Kind.ILLEGAL_ACCESS),
    PlantedStray("write before the start", Guard.LEFT, -2, False, True, Kind.ILLEGAL_ACCESS),
    PlantedStray("read 4 GiB after the end", Guard.RIGHT, 4 << 30, True, False, Kind.ILLEGAL_ACCESS),
    PlantedStray("write into the open side", Guard.LEFT, 0, True, True, Kind.CANARY_OVERWRITTEN),
    PlantedStray("write into an input", Guard.RIGHT, 0, False, True, Kind.INPUT_MUTATED),
)


def strays(device: Device) -> Iterator[Measurement]:
    """Make each kind of access in a worker of its own. Yields one row."""
    with workers_of(Team(device), named(entry.handle_stray), None, spares=1 if device is Device.CPU else 2) as workers:
        missed = [f"{each.words}: {seen}" for each in STRAYS if (seen := _seen(workers, each, device)) != each.shows_as]
    title = "guard pages on the GPU" if device is Device.CUDA else "guard pages on the CPU"
    if missed:
        found = len(STRAYS) - len(missed)
        yield judged(title, f"{found} of {len(STRAYS)} planted accesses detected; {'; '.join(missed)}", works=False)
    else:
        words = ", ".join(each.words for each in STRAYS)
        yield judged(title, f"all {len(STRAYS)} planted accesses detected ({words})", works=True)


def _seen(workers: Workers, planted: PlantedStray, device: Device) -> str:
    """Return the failure that an access leads to, or "not detected"."""
    answer = workers.run(msgspec.json.encode(planted.on(device)), timeout=_SECONDS)
    if isinstance(answer, Death):
        return explain(answer).kind
    kinds = msgspec.json.decode(answer, type=list[str])
    return ", ".join(dict.fromkeys(kinds)) or "not detected"
