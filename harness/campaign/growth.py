"""New coverage and record margins: which cases bring them, and which of those are kept."""

from collections import deque
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from attnfuzz.harness.campaign.events import CaseKept, CoverageGrew, Event
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.search.messages import Interesting
from attnfuzz.reference.case import Case


class Growth:
    """Tells what is new to the whole campaign of what was new to a job. `standing` says what was reached before.

    To keep a case takes a while, for it is reduced to what it is kept for: `waiting` says how many there are to
    `keep_next` when no job has anything to say. A kill costs these cases, and the next campaign finds others.
    """

    def __init__(self, corpus: Corpus, standing: Standing, clock: Callable[[], float]) -> None:
        self._corpus = corpus
        self._standing = standing
        self._clock = clock
        self._records = {backend: dict(score.tally.margins) for backend, score in standing.scores.items()}
        self._queue: deque[tuple[Interesting, Why]] = deque()

    @property
    def waiting(self) -> int:
        """How many cases have still to be kept."""
        return len(self._queue)

    def take(self, message: Interesting, *, searched: int) -> Iterator[Event]:
        """Tell of new pairs, after so many examples; the case waits to be kept if it is new in some way."""
        backend = message.case.backend
        pairs = tuple(pair for pair in message.pairs if pair not in self._standing.score(backend).pairs)
        if pairs:
            yield CoverageGrew(at=self._clock(), backend=backend, searched=searched, pairs=pairs)
        records = self._records.setdefault(backend, {})
        margins = {tier: margin for tier, margin in message.margins.items() if margin > records.get(tier, 0.0)}
        records.update(margins)
        if pairs or margins:
            self._queue.append((replace(message, pairs=pairs, margins=margins), Why.COVERAGE if pairs else Why.MARGIN))

    def keep_next(self) -> Iterator[Event]:
        """Keep a case that waits. Raises OSError."""
        new, why = self._queue.popleft()
        kept = self._corpus.keep(new.case, why=why, pairs=new.pairs, margins=new.margins)
        if kept is not None:
            yield self._kept(kept, new.case.backend, why)

    def keep_failure(self, case: Case) -> Iterator[Event]:
        """Keep the smallest case of a finding, at once. Raises OSError."""
        kept = self._corpus.keep(case, why=Why.FAILURE)
        if kept is not None:
            yield self._kept(kept, case.backend, Why.FAILURE)

    def _kept(self, case_id: str, backend: str, why: Why) -> CaseKept:
        return CaseKept(at=self._clock(), backend=backend, case_id=case_id, why=why)
