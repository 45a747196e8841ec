"""Growth of a campaign: new coverage and record margins, and the cases kept for them."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace

from attnfuzz.harness.campaign.events import CaseKept, CoverageGrew, Event
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.search.messages import Interesting
from attnfuzz.reference.any_case import AnyCase

SECONDS_PER_CHOICE = 20.0
"""Time between two choices. At first, every second case reaches new pairs, which other cases soon reach as well."""

AT_ONCE = 10
"""Number of cases that are written together, in about 2 ms, during which jobs' messages wait."""


_Chosen = TypeVar("_Chosen", AnyCase, Interesting)


class Growth:
    """Reports results that are new to the whole campaign, not only to a job; `standing` has earlier ones.

    Regularly, cases that are worth keeping are chosen: those with the largest margins, and a few that reach all new
    pairs. Writing them takes a while: `chosen` is the number of cases to `keep` when no job has messages. If the
    campaign is killed, the cases since the last choice are lost, and the next campaign finds others.
    """

    def __init__(self, corpus: Corpus, standing: Standing, clock: Callable[[], float]) -> None:
        self._corpus = corpus
        self._standing = standing
        self._clock = clock
        self._records = {backend: dict(score.tally.margins) for backend, score in standing.scores.items()}
        self._covering: defaultdict[str, list[AnyCase]] = defaultdict(list)
        self._close: defaultdict[str, list[Interesting]] = defaultdict(list)
        self._next_choice = SECONDS_PER_CHOICE
        self._queue: deque[Sequence[AnyCase] | Sequence[Interesting]] = deque()

    @property
    def chosen(self) -> int:
        """The number of cases still to be kept."""
        return sum(map(len, self._queue))

    def take(self, message: Interesting, *, searched: int) -> Iterator[Event]:
        """Report new pairs, after `searched` examples. A case with anything new may be kept."""
        backend = message.case.backend
        reached = self._standing.score(backend).pairs
        pairs = tuple(pair for pair in message.pairs if pair not in reached)
        if pairs:
            yield CoverageGrew(at=self._clock(), backend=backend, searched=searched, pairs=pairs)
            self._covering[backend].append(message.case)
        records = self._records.setdefault(backend, {})
        margins = {tier: margin for tier, margin in message.margins.items() if margin > records.get(tier, 0.0)}
        records.update(margins)
        if margins:
            self._close[backend].append(replace(message, margins=margins))

    def choose_if_due(self) -> None:
        """Choose, if it is time."""
        if self._clock() >= self._next_choice:
            self.choose()

    def choose(self) -> None:
        """Choose the results to keep among those since the last choice."""
        # The last is the largest of its tier, so few others are records.
        for close in self._close.values():
            self._queue.extend(_batches(close[::-1]))
        self._close.clear()
        for cases in self._covering.values():
            self._queue.extend(_batches(self._corpus.needed(cases)))
        self._covering.clear()
        self._next_choice = self._clock() + SECONDS_PER_CHOICE

    def keep(self) -> Iterator[Event]:
        """Keep some of the chosen cases. Raises OSError."""
        new = self._queue.popleft()
        close = [(each.case, each.margins) for each in new if isinstance(each, Interesting)]
        covering = [each for each in new if not isinstance(each, Interesting)]
        for case_id in self._corpus.keep_records(close):
            yield self._kept(case_id, close[0][0].backend, Why.MARGIN)
        for case_id in self._corpus.keep_for_coverage(covering):
            yield self._kept(case_id, covering[0].backend, Why.COVERAGE)

    def keep_failure(self, case: AnyCase) -> Iterator[Event]:
        """Keep the smallest case of a finding, immediately. Raises OSError."""
        kept = self._corpus.keep(case, why=Why.FAILURE)
        if kept is not None:
            yield self._kept(kept, case.backend, Why.FAILURE)

    def _kept(self, case_id: str, backend: str, why: Why) -> CaseKept:
        return CaseKept(at=self._clock(), backend=backend, case_id=case_id, why=why)


def _batches(cases: Sequence[_Chosen]) -> Iterator[Sequence[_Chosen]]:
    """Split cases of one backend into batches that are written together."""
    return (cases[at : at + AT_ONCE] for at in range(0, len(cases), AT_ONCE))
