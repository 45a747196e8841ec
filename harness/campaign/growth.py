"""New coverage and record margins, and the cases kept for them."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from attnfuzz.harness.campaign.events import CaseKept, CoverageGrew, Event
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.search.messages import Interesting
from attnfuzz.reference.case import Case

SECONDS_PER_CHOICE = 20.0
"""Time between two choices. At first, every other case reaches new pairs, and others soon reach them as well."""

AT_ONCE = 10
"""Cases that are written together, in some 50 ms on a slow disk."""


class Growth:
    """Reports results that are new to the whole campaign, not only to a job; `standing` has earlier ones.

    From time to time, the cases are chosen that are worth keeping: those with the largest margins, and a few that reach
    all new pairs. Writing them takes a while: `chosen` is the number of cases to `keep` when no job has messages. A
    kill loses the cases since the last choice, and the next campaign finds others.
    """

    def __init__(self, corpus: Corpus, standing: Standing, clock: Callable[[], float]) -> None:
        self._corpus = corpus
        self._standing = standing
        self._clock = clock
        self._records = {backend: dict(score.tally.margins) for backend, score in standing.scores.items()}
        self._covering: defaultdict[str, list[Case]] = defaultdict(list)
        self._close: list[Interesting] = []
        self._next_choice = SECONDS_PER_CHOICE
        self._queue: deque[Interesting | tuple[Case, ...]] = deque()

    @property
    def chosen(self) -> int:
        """Number of cases still to be kept."""
        return sum(1 if isinstance(each, Interesting) else len(each) for each in self._queue)

    def take(self, message: Interesting, *, searched: int) -> Iterator[Event]:
        """Report new pairs, after `searched` examples; a case with anything new may be kept."""
        backend = message.case.backend
        pairs = tuple(pair for pair in message.pairs if pair not in self._standing.score(backend).pairs)
        if pairs:
            yield CoverageGrew(at=self._clock(), backend=backend, searched=searched, pairs=pairs)
            self._covering[backend].append(message.case)
        records = self._records.setdefault(backend, {})
        margins = {tier: margin for tier, margin in message.margins.items() if margin > records.get(tier, 0.0)}
        records.update(margins)
        if margins:
            self._close.append(replace(message, margins=margins))

    def choose_if_due(self) -> None:
        """Choose, if it is time."""
        if self._clock() >= self._next_choice:
            self.choose()

    def choose(self) -> None:
        """Choose the results to keep among those since the last choice."""
        # The last is the largest of its tier, so that few others are records.
        self._queue.extend(reversed(self._close))
        self._close.clear()
        for cases in self._covering.values():
            needed = self._corpus.needed(cases)
            self._queue.extend(tuple(needed[at : at + AT_ONCE]) for at in range(0, len(needed), AT_ONCE))
        self._covering.clear()
        self._next_choice = self._clock() + SECONDS_PER_CHOICE

    def keep(self) -> Iterator[Event]:
        """Keep some of the chosen cases. Raises OSError."""
        new = self._queue.popleft()
        if isinstance(new, Interesting):
            kept = self._corpus.keep(new.case, why=Why.MARGIN, margins=new.margins)
            if kept is not None:
                yield self._kept(kept, new.case.backend, Why.MARGIN)
        else:
            for case_id in self._corpus.keep_for_coverage(new):
                yield self._kept(case_id, new[0].backend, Why.COVERAGE)

    def keep_failure(self, case: Case) -> Iterator[Event]:
        """Keep the smallest case of a finding, at once. Raises OSError."""
        kept = self._corpus.keep(case, why=Why.FAILURE)
        if kept is not None:
            yield self._kept(kept, case.backend, Why.FAILURE)

    def _kept(self, case_id: str, backend: str, why: Why) -> CaseKept:
        return CaseKept(at=self._clock(), backend=backend, case_id=case_id, why=why)
