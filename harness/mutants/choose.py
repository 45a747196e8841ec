"""The mutants to run: on executed lines, perhaps on those of a change alone, and a sample of each kind."""

import random
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from attnfuzz.harness.mutants.examine import reaching
from attnfuzz.harness.mutants.results import MeasuredCase
from attnfuzz.harness.mutation.changes import PlacedMutant, mutants_of
from attnfuzz.reference.user_error import UserError

_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


class NoChanges(UserError):
    """A commit that can't be compared with the tree; the message says why."""


def possible(cases: Sequence[MeasuredCase], lines: Mapping[str, frozenset[int]] | None = None) -> list[PlacedMutant]:
    """Return the mutants of all executed lines, of those among `lines` by file if they are given."""
    files = sorted({file for case in cases for file in case.lines})
    found = chain.from_iterable(mutants_of(Path(file)) for file in files)
    return [each for each in found if reaching(each, cases) and (lines is None or _touches(each, lines))]


def _touches(found: PlacedMutant, lines: Mapping[str, frozenset[int]]) -> bool:
    return not lines.get(found.mutant.file, frozenset()).isdisjoint(found.lines)


def sampled(found: Sequence[PlacedMutant], count: int | None, seed: int) -> list[PlacedMutant]:
    """Return a random sample, in random order, with as many mutants of each kind of change as there are, in turn.

    Without a count, all are returned in that order: the first ones are a sample.
    """
    kinds: dict[str, list[PlacedMutant]] = {}
    for each in found:
        kinds.setdefault(each.mutant.operator, []).append(each)
    draw = random.Random(seed)
    for members in kinds.values():
        draw.shuffle(members)
    in_turn = [each for round_ in zip_longest(*kinds.values()) for each in round_ if each is not None]
    return in_turn[:count]


def changed_lines(root: Path, since: str) -> dict[str, frozenset[int]]:
    """Return the lines, by file below `root`, that differ from those of a commit. Raises NoChanges."""
    command = ["git", "-C", str(root), "diff", "--unified=0", "--relative", "--no-color", since, "--", "*.py"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoChanges(f"git can't be run: {error.strerror}") from None
    if ran.returncode:
        raise NoChanges(f"{root} can't be compared with {since}: {ran.stderr.strip().partition(chr(10))[0]}")
    return {str(root / file): lines for file, lines in _lines_in(ran.stdout.splitlines()).items()}


def _lines_in(diff: Iterable[str]) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    file = ""
    for line in diff:
        if line.startswith("+++ "):
            file = line.removeprefix("+++ ").removeprefix("b/")
        elif hunk := _HUNK.match(line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found[file] = found.get(file, frozenset()).union(range(first, first + count))
    return found
