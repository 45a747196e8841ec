"""New coverage and record margins, and the cases kept for them."""

from collections import deque
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from attnfuzz.harness.campaign.events import CaseKept, CoverageGrew, Event
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.search.messages import Interesting
from attnfuzz.reference.case import Case


class Growth:
    """Reports results that are new to the whole campaign, not only to a job; `standing` has earlier ones.

    Keeping a case takes a while, since it is reduced: `waiting` is the number of cases to `keep_next` when no job has
    messages. A kill loses these cases, and the next campaign finds others.
    """

    def __init__(self, corpus: Corpus, standing: Standing, clock: Callable[[], float]) -> None:
        self._corpus = corpus
        self._standing = standing
        self._clock = clock
        self._records = {backend: dict(score.tally.margins) for backend, score in standing.scores.items()}
        self._queue: deque[tuple[Interesting, Why]] = deque()

    @property
    def waiting(self) -> int:
        """Number of cases still to be kept."""
        return len(self._queue)

    def take(self, message: Interesting, *, searched: int) -> Iterator[Event]:
        """Report new pairs, after `searched` examples; a case with anything new waits to be kept."""
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
        """Keep a waiting case. Raises OSError."""
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
