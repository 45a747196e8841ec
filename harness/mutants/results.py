"""Results of a run of mutants, as a file: its table, and the state to resume from."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from attnfuzz.harness.campaign.events import JobCount
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.mutation.changes import Mutant
from attnfuzz.harness.search.messages import Count, Seconds
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_types import decode_any
from attnfuzz.reference.foreign import decode_json, read_bytes, reason
from attnfuzz.reference.user_error import UserError
from attnfuzz.reference.validity import ImpossibleCase

RESULTS = "mutants.json"


class MutantsError(UserError):
    """A folder has no run of mutants, or a damaged one; the message has the remedy."""


class Fate(StrEnum):
    """How the cases that reach a mutant's line end.

    `RAISES`, `HANGS` and `OUT_OF_MEMORY` are deaths by themselves: any test that executes the line shows them. One that
    `REFUSES` only declines cases that the original takes. No case tells one with `SAME_PLANS` from the original. With
    `NOT_MADE`, no loaded function has the line.
    """

    KILLED = "killed"
    RAISES = "raises"
    HANGS = "hangs"
    OUT_OF_MEMORY = "out of memory"
    REFUSES = "refuses"
    SURVIVED = "survived"
    SAME_PLANS = "same plans"
    NOT_MADE = "not made"


DETECTED = frozenset({Fate.KILLED, Fate.RAISES, Fate.HANGS, Fate.OUT_OF_MEMORY})
"""The fates of mutants that fail."""


class MeasuredCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case on the unchanged code: its number among the drawn ones, the digest of its plan, and its lines by file."""

    number: Count
    case: AnyCase
    plan: str
    lines: dict[str, tuple[int, ...]]


class MutantsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run: `examples` cases, drawn with `seed`, and at most `seconds` for each mutant.

    `root` is the folder that files are named in; `places` are those whose code is changed, on lines changed since the
    commit `since` alone if that is given. At most `sample` mutants are run.
    """

    backend: str
    root: str
    places: tuple[str, ...]
    examples: Count
    seconds: Seconds
    sample: Count | None
    seed: int
    jobs: JobCount
    since: str | None = None


class MutantOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a mutant of the code `source`.

    If it fails, `kind`, `place` and `message` are those of its failure, and `number` that of the failing case among the
    drawn ones, from 1: a search with this seed needs that number of cases. `ran` cases ran in `seconds`, of `reached`
    ones that execute its line. The plan of `changed` ones differs, at first by `difference` in one of them; `refused`
    ones are not supported any more, for the reason `message`. `unconfirmed` failures did not come back in a fresh
    worker.
    """

    mutant: Mutant
    source: str
    fate: Fate
    kind: str = ""
    place: str = ""
    message: str = ""
    number: Count = 0
    ran: Count = 0
    reached: Count = 0
    changed: Count = 0
    difference: str = ""
    refused: Count = 0
    unconfirmed: Count = 0
    seconds: Seconds = 0.0


class MutantResults(msgspec.Struct, frozen=True, kw_only=True):
    """All results. `cases` are those that pass on the unchanged code, `possible` the number of mutants of its lines."""

    format: Literal["attnfuzz-mutants"] = "attnfuzz-mutants"
    version: Literal[1] = 1
    asked: MutantsPlan
    environment: dict[str, str]
    cases: tuple[MeasuredCase, ...] = ()
    possible: Count = 0
    outcomes: tuple[MutantOutcome, ...] = ()

    @property
    def counts(self) -> Counter[Fate]:
        """The number of mutants of each fate."""
        return Counter(each.fate for each in self.outcomes)

    @property
    def survivors(self) -> list[MutantOutcome]:
        """The mutants that change or refuse some case, and fail in none."""
        return [each for each in self.outcomes if each.fate in {Fate.SURVIVED, Fate.REFUSES}]

    @property
    def score(self) -> tuple[int, int]:
        """The mutants that fail, and those that do or change some plan."""
        failing = sum(each.fate in DETECTED for each in self.outcomes)
        return failing, failing + len(self.survivors)


def write_results(folder: Path, results: MutantResults) -> None:
    """Write them to the folder atomically. Raises OSError."""
    write_durably(folder / RESULTS, msgspec.json.encode(results) + b"\n")


_results = msgspec.json.Decoder(MutantResults, dec_hook=decode_any)


def read_results(folder: Path) -> MutantResults:
    """Read the results in a folder. Raises MutantsError."""
    path = folder / RESULTS
    try:
        results = decode_json(read_bytes(path), _results)
        for measured in results.cases:
            measured.case.validate()
    except OSError as error:
        raise MutantsError(f"cannot read {path}: {error.strerror}. Name the --home of a run of mutants") from None
    except (msgspec.DecodeError, ImpossibleCase) as error:
        raise MutantsError(f"{path} is not of this attnfuzz ({reason(error)}): start another") from None
    return results


def left(results: MutantResults, mutants: Sequence[Mutant]) -> list[Mutant]:
    """Return the mutants without an outcome."""
    done = {each.mutant for each in results.outcomes}
    return [each for each in mutants if each not in done]
