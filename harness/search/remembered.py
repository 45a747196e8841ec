"""Hypothesis' example database as a search uses it: few entries, each tried once, under names of our own."""

from collections.abc import Iterable
from itertools import islice

from hypothesis.database import ExampleDatabase

from attnfuzz.strategies.lean import Lean

TRIED_PER_SLICE = 5
"""Entries that one slice tries; those of a bug that is known, or was fixed, cost no more than this."""

_MOST_TRIED = 100_000


class Remembered:
    """The failing examples in `database`, for the slices of one job. An entry is tried once by a job, and no more."""

    def __init__(self, database: ExampleDatabase) -> None:
        self._database = database
        self._tried: set[tuple[bytes, bytes]] = set()

    def of(self, backend: str, lean: Lean) -> "SliceExamples":
        """What a slice hands to Hypothesis. What was drawn says something under the same lean only."""
        if len(self._tried) > _MOST_TRIED:
            self._tried.clear()
        return SliceExamples(self._database, "\0".join(("attnfuzz", backend, *lean.features)).encode(), self._tried)


class SliceExamples(ExampleDatabase):
    """A database for one run of Hypothesis, which keeps the smallest failing examples in `database` under `name`.

    Hypothesis names entries after the function that it calls, and we have one function for all backends. The names
    that it derives from the first one are for what shrinking and targets passed through: they are not kept, since
    trying them again would take a tenth of each slice.

    Set `failed` after each example: what failed is kept even if it raised nothing, because the failure is known here;
    another machine may not know it. Set `closed` when what ends the run is no failure.
    """

    def __init__(self, database: ExampleDatabase, name: bytes, tried: set[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self.failed = False
        self.closed = False
        self._database = database
        self._name = name
        self._tried = tried
        self._first: bytes | None = None

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Some entries that this job has not tried, the smallest first."""
        self._first = self._first or key
        if key != self._first:
            return
        entries = sorted(self._database.fetch(self._name), key=lambda entry: (len(entry), entry))
        untried = (entry for entry in entries if (self._name, entry) not in self._tried)
        for entry in islice(untried, TRIED_PER_SLICE):
            self._tried.add((self._name, entry))
            yield entry

    def save(self, key: bytes, value: bytes) -> None:
        """Keep a failing example."""
        if key == self._first and not self.closed:
            self._tried.add((self._name, value))
            self._database.save(self._name, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example, unless it failed just now."""
        if key == self._first and not self.failed:
            self._database.delete(self._name, value)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Forget an example for which there is a smaller one."""
        if src == self._first:
            self._database.delete(self._name, value)
