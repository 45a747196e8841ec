"""Hypothesis' example database for a search: few entries, each tried once, under our own names."""

from collections.abc import Iterable
from itertools import islice

from hypothesis.database import ExampleDatabase

from attnfuzz.strategies.lean import Lean

TRIED_PER_SLICE = 5
"""Entries that one slice tries, which bounds the cost of known or fixed bugs."""

_MOST_TRIED = 100_000


class Remembered:
    """The failing examples in `database`, for the slices of one job. A job tries an entry once."""

    def __init__(self, database: ExampleDatabase) -> None:
        self._database = database
        self._tried: set[tuple[bytes, bytes]] = set()

    def of(self, backend: str, lean: Lean) -> "SliceExamples":
        """The database for a slice, per lean: entries are valid only under the same lean."""
        if len(self._tried) > _MOST_TRIED:
            self._tried.clear()
        return SliceExamples(self._database, "\0".join(("attnfuzz", backend, *lean.features)).encode(), self._tried)


class SliceExamples(ExampleDatabase):
    """A database for one run of Hypothesis, which keeps the smallest failing examples in `database` under `name`.

    Hypothesis names entries after the function that it calls, and ours is the same for all backends. Entries under
    names derived from the first one, for shrinking and targets, are not kept: trying them again would take a tenth of
    each slice.
    Set `failed` after each example: failing ones are kept even if they raised nothing, because the failure is known
    here; another machine may not know it. Set `closed` when the run ends without a failure.
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
        """Yield some entries that this job has not tried, the smallest first."""
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
