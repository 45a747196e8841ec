"""Recognizing failures that the ledger or a known cause accounts for, by one run without a feature that these need."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from attnfuzz.harness.family import family_of
from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.reduce.ablation import unusual_in
from attnfuzz.harness.reduce.plainest import leave_out, without_one
from attnfuzz.harness.search.known import KnownCause, KnownCauses, visible_with
from attnfuzz.harness.search.messages import Recognized, Slice
from attnfuzz.harness.search.rare_deaths import RareDeaths
from attnfuzz.harness.search.tally import CountingRunner
from attnfuzz.harness.verdict.failures import DEATHS, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase

IN_FULL: Final = 20
"""One in this many failures that the ledger or a known cause may account for is settled like a new one."""

OF_CAUSES: Final = 0
"""The number under which failures that known causes alone account for are counted. Entries begin at 1."""


class _Account(NamedTuple):
    """A possible reason of a failure: the `words` of features that it needs, and the ledger's `entry` if it is one."""

    words: frozenset[str]
    entry: Entry | None = None


class Recognition:
    """Runs failing cases once more without a feature that a ledger entry or a known cause needs.

    A case that passes then counts as known. If it still fails, another failure is beneath, and the search goes on with
    the case without the feature. A known cause of failures that kill no worker is asked for its other prediction too:
    the case also fails with its features alone. The slice's seed determines which failures are settled in full.

    `explained` are the failures that counted as known. `deaths` learns the features that kill a worker.
    """

    def __init__(
        self,
        task: Slice,
        causes: KnownCauses,
        runner: CountingRunner,
        allowed: Callable[[Any], bool],
        ledger: Sequence[Entry],
        deaths: RareDeaths,
    ) -> None:
        self._causes, self._runner, self._allowed, self._deaths = causes, runner, allowed, deaths
        self._entries = {each: number for number, each in enumerate(ledger, 1) if each.is_about(task.backend)}
        self._source = random.Random(task.seed)
        self._turn = 0
        self._in_full: dict[AnyCase, list[Entry]] = {}
        self.explained: set[Fingerprint] = set()

    def beneath(self, case: AnyCase, verdict: Verdict) -> tuple[AnyCase, Verdict]:
        """Return a failing case without the features that account for its worst failure, with the verdict on it.

        Returns both as they are if nothing accounts for the failure, or it is to be settled in full.
        """
        failure = verdict.failures[0]
        fingerprint = Fingerprint.of(case.backend, failure)
        accounts = list(self._accounts(case, fingerprint))
        entries = [each.entry for each in accounts if each.entry is not None]
        if accounts and not self._source.randrange(IN_FULL):
            self._in_full[case] = entries
            return case, verdict
        self._turn += 1
        less, needed = case, frozenset[str]()
        for words, _ in accounts:
            less, removed = without_one(less, words, self._allowed, turn=self._turn)
            needed = needed or (words | removed if removed else needed)
        again = self._runner.verdict(less) if less != case else None
        if again is None or again.unsupported is not None:
            if accounts:
                self._count(entries, Recognized(refused=1))
            return case, verdict
        if fingerprint.among(again.failures) is not None:
            self._count(entries, Recognized(beneath=1))
            return less, again
        if again.failures:
            # Another failure, which this one hid, does not speak against the entry.
            if entries:
                self._count(entries, Recognized(passed=1))
            return less, again
        deadly = failure.kind in DEATHS
        if not (entries or deadly or self._fails_alone(case, fingerprint, accounts)):
            return case, verdict
        self._count(entries, Recognized(passed=1))
        self.explained.add(fingerprint)
        if deadly:
            self._deaths.learn(case.backend, needed)
        return less, again

    def settled(self, first: AnyCase, fingerprint: Fingerprint, smallest: AnyCase) -> None:
        """Count a failure that was settled in full, by whether one of its entries also matches the smallest case."""
        if entries := self._in_full.pop(first, ()):
            right = [each for each in entries if each.matches(fingerprint, smallest, None)]
            self._count(right or entries, Recognized(agreed=1) if right else Recognized(elsewhere=1))

    def _count(self, entries: Sequence[Entry], counts: Recognized) -> None:
        """Count a failure once: under the first of the entries that may account for it."""
        self._runner.recognized(self._entries[entries[0]] if entries else OF_CAUSES, counts)

    def _accounts(self, case: AnyCase, fingerprint: Fingerprint) -> Iterator[_Account]:
        """Yield the possible reasons of a failure of a case, entries of the ledger first."""
        table = family_of(case).table
        for entry in self._entries:
            if entry.features and entry.matches(fingerprint, case, None):
                yield _Account(table.current(entry.features), entry)
        for cause in self._causes:
            if words := _clues(cause, fingerprint, case):
                yield _Account(words)

    def _fails_alone(self, case: AnyCase, fingerprint: Fingerprint, accounts: Sequence[_Account]) -> bool:
        """Return whether a case without all clues but those of the accounts fails alike."""
        words = frozenset[str]().union(*(each.words for each in accounts))
        others = {each for each in unusual_in(case) - visible_with(fingerprint) if each.name not in words}
        alone = leave_out(case, others, self._allowed)
        return alone == case or fingerprint.among(self._runner.verdict(alone).failures) is not None


def _clues(cause: KnownCause, fingerprint: Fingerprint, case: AnyCase) -> frozenset[str]:
    """Return the names of the clues of a cause that may account for a failure of a case, or none."""
    if not cause.ablated or type(cause.case) is not type(case):
        return frozenset()
    symptoms = [each for each in cause.symptoms if each.family == fingerprint.family]
    if not any(each.backend == fingerprint.backend or each.kernel == fingerprint.kernel for each in symptoms):
        return frozenset()
    return frozenset(each.name for each in cause.marks_in(case) or () if each.clue and not each.memory)
