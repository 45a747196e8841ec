"""Whether a known cause explains a failure: what the cause predicts is run before it is believed.

A cause explains a failure if
- the case has the features that the cause needs, and passes without each of them; and
- the smallest case of the cause, moved to where the failure shows, fails in this way; or the failing case, with no
  features left but those that the cause needs, still fails, and fails as the cause does where the cause shows.

A cause that needs no feature has to pass both halves of the second test, in the same kernel. Nothing is explained by
likeness: causes with the same kind, kernel and mode stay apart unless the runs above agree.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from attnfuzz.harness.reduce.ablation import CLUES, FRESH_SEEDS, Feature, ablations
from attnfuzz.harness.reduce.possible import possible
from attnfuzz.harness.reduce.transfers import captured, in_mode
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Launch, Mode

MOST_CAUSES = 12
"""Known causes that are tried on one failure, the likeliest first."""

SHARE = 0.4
"""The part of the budget for shrinking a failure after which no further cause is tried on it."""

SEEDS = 2
"""Value seeds with which a case that is predicted to fail is run."""

Allowed = Callable[[Case], bool]

_SEEN_WITH: dict[Kind, frozenset[str]] = {
    Kind.EMPTY_ROW: frozenset({"empty KV", "fewer keys than queries"}),
    Kind.PADDING_LEAK: frozenset({"padding", "replay"}),
    Kind.REPLAY_DIVERGED: frozenset({"padding", "replay"}),
    Kind.NONDETERMINISTIC: frozenset({"relation"}),
    Kind.METAMORPHIC_MISMATCH: frozenset({"relation"}),
}
"""Features without which a kind of failure can't be seen, whatever its cause."""

_PLACES = {"padded rows": frozenset({"padding", "replay"}), "empty rows": _SEEN_WITH[Kind.EMPTY_ROW]}
"""The same for places."""


class Attribution(NamedTuple):
    """What became of a failure: the known `cause` that explains it, if one does, and the case to go on with.

    That is another than before if the failure shows without the features of a cause, too: something else is beneath.
    """

    cause: KnownCause | None
    case: Case


def explain(pinned: Pinned[Case], causes: Sequence[KnownCause], allowed: Allowed) -> Attribution:
    """Find the cause that explains a pinned failure, within the failure's budget."""
    case = pinned.first
    for cause in _likeliest(causes, pinned.fingerprint):
        if pinned.left <= 1 - SHARE:
            break
        if not cause.may_show_in(case):
            continue
        test = _Test(cause, case, pinned, allowed)
        failing = test.failing_without()
        if failing is not None:
            case = failing
        elif test.passes_without and test.predicted:
            return Attribution(cause, case)
    return Attribution(None, case)


def _likeliest(causes: Sequence[KnownCause], fingerprint: Fingerprint) -> list[KnownCause]:
    """The causes in this backend or kernel: those first that show in both."""

    def unlike(cause: KnownCause) -> int:
        backend = any(each.backend == fingerprint.backend for each in cause.symptoms)
        kernel = any(each.kernel == fingerprint.kernel for each in cause.symptoms)
        return 2 - backend - kernel

    return sorted((cause for cause in causes if unlike(cause) < 2), key=unlike)[:MOST_CAUSES]


class _Test:
    """The runs that say whether `cause` explains how `case` fails."""

    def __init__(self, cause: KnownCause, case: Case, pinned: Pinned[Case], allowed: Allowed) -> None:
        self._cause = cause
        self._case = case
        self._pinned = pinned
        self._allowed = allowed
        self.passes_without = True

    def failing_without(self) -> Case | None:
        """A variant without a feature that the cause needs, which still fails in the same way; None if none does.

        Sets `passes_without`: whether all variants were run, and each passed altogether.
        """
        removed = list(ablations(self._case, allowed=self._allowed, among=self._cause.clues))
        self.passes_without = len(removed) == len(self._cause.clues)
        for variant in (variant for _, variants in removed for variant in variants):
            for again in _reseeded(variant, FRESH_SEEDS + 1):
                verdict = self._pinned.judged(again)
                if verdict is None or verdict.unsupported is not None or verdict.failures:
                    self.passes_without = False
                if self._pinned.fails(again):
                    return again
        return None

    @property
    def predicted(self) -> bool:
        """Whether the cause predicts the failure where it shows."""
        if self._cause.clues:
            return self._fails_here() or self._fails_there()
        same_kernel = any(each.kernel == self._pinned.fingerprint.kernel for each in self._cause.symptoms)
        return same_kernel and self._fails_here() and self._fails_there()

    def _fails_here(self) -> bool:
        """Whether the cause's case fails like this one where this one does."""
        return self._some_fails(moved(self._cause.case, self._case, self._pinned.fingerprint), self._pinned.fingerprint)

    def _fails_there(self) -> bool:
        """Whether this case with the cause's features alone fails, and like the cause where the cause shows."""
        own = self._pinned.fingerprint
        seen_with = _SEEN_WITH.get(own.kind, frozenset()) | _PLACES.get(own.place, frozenset())
        plain = self._plain({feature for feature in CLUES if feature.name in seen_with})
        if not self._some_fails(iter((plain,)), own):
            return False
        return self._some_fails(moved(plain, self._cause.case, self._cause.fingerprint), self._cause.fingerprint)

    def _plain(self, kept: set[Feature]) -> Case:
        """The case without the clues that neither the cause nor the kind of failure needs."""
        case = self._case
        for feature in sorted(CLUES - self._cause.clues - kept):
            case = next((each.variants[0] for each in ablations(case, allowed=self._allowed, among={feature})), case)
        return case

    def _some_fails(self, cases: Iterator[Case], fingerprint: Fingerprint) -> bool:
        """Whether one of the cases that can be run fails with this fingerprint, with the one seed or another."""
        for case in cases:
            if possible(case) and self._allowed(case):
                for again in _reseeded(case, SEEDS):
                    verdict = self._pinned.judged(again)
                    if verdict is not None and fingerprint.among(verdict.failures) is not None:
                        return True
        return False


def moved(case: Case, to: Case, fingerprint: Fingerprint) -> Iterator[Case]:
    """Yield `case` where `to` fails with this fingerprint: in its backend and mode, and replayed if `to` is.

    Then with the circumstances of `to`, which decide whether a stray access meets a guard or a NaN, and last with its
    sizes and dtypes, for backends that share no others.
    """
    there = replace(case, backend=to.backend)
    if fingerprint.mode in set(Mode) and all(step.mode != fingerprint.mode for step in there.steps):
        there = in_mode(there, Mode(fingerprint.mode))
    yield there
    if _replays(to) and not _replays(there) and (replayed := captured(there)) is not None:
        yield replayed
    pages = replace(there.pages, spare=to.pages.spare)
    yield replace(there, guard=to.guard, values=to.values, outputs=to.outputs, pages=pages, seed=to.seed)
    own = case.geometry
    if case.backend != to.backend:
        features = {"window_left": own.window_left, "sinks": own.sinks, "soft_cap": own.soft_cap}
        yield replace(there, geometry=replace(to.geometry, **features))


def _replays(case: Case) -> bool:
    return any(step.launch is Launch.REPLAY for step in case.steps)


def _reseeded(case: Case, seeds: int) -> Iterator[Case]:
    return (replace(case, seed=case.seed + offset) for offset in range(seeds))
