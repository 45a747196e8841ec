"""Finding failures hidden behind known ones: other failures of the same case, and variants without the known causes."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from attnfuzz.harness.reduce.ablation import ablations, features_in
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.features.row import Feature

SHARE = 0.1
"""Maximum share of the searched cases that are run once more."""

MOST_TOGETHER = 4
"""Maximum number of causes with the same fingerprint. More are usually fragments of one."""


class Symptoms:
    """The kinds and places of all failures of known causes' smallest cases, each run once per backend."""

    def __init__(self, run: Callable[[Any], Verdict], allowed: Callable[[Any], bool]) -> None:
        self._run, self._allowed = run, allowed
        self._found: dict[tuple[str, str], Collection[tuple[Kind, str]]] = {}

    def include(self, failure: Observation, causes: Iterable[KnownCause], backend: str) -> bool:
        """Return whether the smallest case of one of the causes fails like this in this backend, in any mode."""
        return any((failure.kind, failure.place) in self._of(cause, backend) for cause in causes)

    def _of(self, cause: KnownCause, backend: str) -> Collection[tuple[Kind, str]]:
        if (cause.name, backend) not in self._found:
            case = cause.case.having(backend=backend)
            failures = self._run(case).failures if self._allowed(case) else ()
            self._found[cause.name, backend] = {(each.kind, each.place) for each in failures}
        return self._found[cause.name, backend]


def explaining(
    causes: Collection[KnownCause],
    case: AnyCase,
    fingerprint: Fingerprint,
    accepts: Callable[[Fingerprint, Any], bool],
) -> Sequence[KnownCause] | None:
    """Return the causes that may make `case` fail, among those with its failure's `fingerprint`.

    An empty list means that the reason is something else, for instance if the ledger `accepts` all of them but not the
    failure of `case`. None means unknown, because a cause is visible in all cases, or its needs are unknown.
    """
    accepted = (accepts(cause.fingerprint, cause.case) for cause in causes)
    if causes and not accepts(fingerprint, case) and all(accepted):
        return []
    if not causes or len(causes) >= MOST_TOGETHER or not all(cause.clues for cause in causes):
        return None
    return [cause for cause in causes if cause.may_show_in(case)]


def without(
    case: AnyCase, causes: Sequence[KnownCause], allowed: Callable[[Any], bool], *, turn: int
) -> AnyCase | None:
    """Return `case` without one feature that each of `causes` needs, or None if there is no such variant.

    `turn` rotates the choice of features: a hidden failure may need some of them too.
    """
    variant = case
    for cause in causes:
        if cause.clues <= features_in(variant):
            clues = sorted(cause.clues)
            less = _without(variant, clues[turn % len(clues)], allowed)
            if less is None:
                return None
            variant = less
    return None if variant == case else variant


def _without(case: AnyCase, feature: Feature, allowed: Callable[[Any], bool]) -> AnyCase | None:
    return next((each.variants[0] for each in ablations(case, allowed=allowed, among={feature})), None)
