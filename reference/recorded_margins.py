"""Recorded margins: how close correct outputs come to their bounds, for each backend, architecture and query dtype.

Each home has those of its campaigns. Those in `calibrations/margins-*.json` ship with the project.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from attnfuzz.reference import foreign
from attnfuzz.reference.calibration import SHIPPED
from attnfuzz.reference.calibration import load as load_calibration
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.user_error import UserError


class MarginsError(UserError):
    """A file that is no list of margins. The message is one line with the problem and its remedy."""


class RecordedMargins(msgspec.Struct, frozen=True, kw_only=True):
    """The largest margin of each tier, error over bound, among `rows` of cases that passed.

    `noise` is the model that gave the bounds, `architecture` that of the GPU or CPU, as in calibrations, and `machine`
    its name. `versions` are those of attnfuzz and of the packages that the result depends on, `date` the last one.
    """

    backend: str
    architecture: str
    dtype: DType
    rows: int
    margins: Mapping[str, float]
    noise: NoiseModel
    date: str
    machine: str
    versions: Mapping[str, str]

    @property
    def subject(self) -> tuple[str, str, str]:
        """The backend, architecture and dtype, of which a file has one record."""
        return self.backend, self.architecture, self.dtype

    def with_later(self, later: "RecordedMargins") -> "RecordedMargins":
        """Return both in one if their bounds and versions are the same, else the later one."""
        if (self.noise, self.versions) != (later.noise, later.versions):
            return later
        tiers = {**self.margins, **later.margins}
        largest = {tier: max(self.margins.get(tier, 0.0), later.margins.get(tier, 0.0)) for tier in tiers}
        return msgspec.structs.replace(later, rows=self.rows + later.rows, margins=largest)


def encoded(records: Iterable[RecordedMargins]) -> bytes:
    """Encode records as indented JSON, those of one subject in one."""
    merged: dict[tuple[str, str, str], RecordedMargins] = {}
    for record in records:
        earlier = merged.get(record.subject)
        merged[record.subject] = record if earlier is None else earlier.with_later(record)
    return msgspec.json.format(msgspec.json.encode([merged[each] for each in sorted(merged)]), indent=1) + b"\n"


def load(path: Path) -> tuple[RecordedMargins, ...]:
    """Read a file of margins. Raises MarginsError if it is damaged, OSError if it can't be read."""
    try:
        return msgspec.convert(foreign.decode_json(foreign.read_bytes(path)), tuple[RecordedMargins, ...])
    except msgspec.DecodeError as error:
        reason = foreign.reason(error)
        raise MarginsError(f"{path} is no list of margins ({reason}): delete it, the next campaign makes it") from error


def shipped() -> tuple[RecordedMargins, ...]:
    """Return the margins that ship with the project: those of campaigns, and those held out of calibrations."""
    campaigns = [record for path in sorted(SHIPPED.glob("margins-*.json")) for record in load(path)]
    known = {record.subject for record in campaigns}
    files = (path for path in sorted(SHIPPED.glob("*.json")) if not path.name.startswith("margins-"))
    calibrated = [
        RecordedMargins(
            backend=each.backend,
            architecture=each.architecture,
            dtype=dtype,
            rows=fit.rows // 2,
            margins=fit.margins,
            noise=fit.noise,
            date=each.date,
            machine=each.architecture,
            versions=each.versions,
        )
        for each in map(load_calibration, files)
        for dtype, fit in each.dtypes.items()
    ]
    return (*campaigns, *(record for record in calibrated if record.subject not in known))
