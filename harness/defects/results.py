"""What a measurement of the judge's power gave, as `attnfuzz defects run --json` writes it and reports read it."""

from pathlib import Path

import msgspec

from attnfuzz.harness.defects.search import SearchOutcome
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.foreign import decode_json, read_bytes, reason
from attnfuzz.reference.user_error import UserError


class DefectScoreError(UserError):
    """A file that holds no measurement; the message is one line."""


class DefectScore(msgspec.Struct, frozen=True, kw_only=True):
    """How each search ended, and how many of the defects every seed killed."""

    attnfuzz: str
    examples: int
    seeds: tuple[int, ...]
    without: tuple[Tier, ...]
    killed: int
    defects: int
    searches: tuple[SearchOutcome, ...]

    @property
    def survivors(self) -> list[str]:
        """The defects that some seed did not kill, in the order in which they were searched."""
        return list(dict.fromkeys(search.defect for search in self.searches if search.kill is None))


def write_score(path: Path, score: DefectScore) -> None:
    """Write `score` as indented JSON. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(score)) + b"\n")


def read_score(path: Path) -> DefectScore:
    """What `write_score` wrote.

    Raises:
        DefectScoreError: the file can't be read, or is not one of those.

    """
    try:
        return decode_json(read_bytes(path), DefectScore)
    except OSError as error:
        raise DefectScoreError(f"cannot read {path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise DefectScoreError(f"{path} is not what attnfuzz defects run --json writes: {reason(error)}") from error
