"""Deciding whether two causes are one argument that a library misreads, at one entry point or several.

Whether a library checks an argument depends on the purpose of the argument: it may use metadata on the device
unchecked, and outputs by their addresses. The same omission then occurs at several entry points, in different
arguments, and shows in whatever way the kernel fails that misreads them. Another entry point may lack the argument of
the first, so neither case can be moved to the other's kernel. Instead, each case makes its own prediction: it fails
with the form and no other clue, and passes with the argument in its plain form. Two such cases are one cause if their
forms are in one of `MISREADINGS`, and their backends belong to one library. If the argument is a number, an option or
an object, they also have to fail alike.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from functools import cache
from typing import Any, Final

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.reduce import identity
from attnfuzz.harness.reduce.ablation import (
    ARGUMENTS,
    CLUES,
    CONTENTS,
    FEATURES,
    TENSOR_FORMS,
    ablations,
    features_in,
    reseeded,
)
from attnfuzz.harness.reduce.plainest import leave_out, plainest
from attnfuzz.harness.search.known import KnownCause, Showing
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import WRONG
from attnfuzz.kernels.interface.backend import package_of
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.arguments import (
    FLOATS_OF_ANOTHER_WIDTH,
    INPUTS_NOT_DENSE,
    METADATA_NOT_DENSE_INT32,
    OUTPUTS_NOT_DENSE,
    ArgumentForm,
)
from attnfuzz.reference.features.row import Feature
from attnfuzz.reference.user_error import UserError

_GROUPS: Final[tuple[Collection[str], ...]] = (
    METADATA_NOT_DENSE_INT32,
    OUTPUTS_NOT_DENSE,
    INPUTS_NOT_DENSE,
    FLOATS_OF_ANOTHER_WIDTH,
    (ArgumentForm.SCALE_TENSOR, ArgumentForm.K_SCALE_TENSOR, ArgumentForm.V_SCALE_TENSOR),
    ("softmax scale of 0 or below", "K scale of 0 or below"),
)

MISREADINGS: Final = tuple(frozenset(FEATURES[str(name)] for name in group) for group in _GROUPS)
"""Forms and edges of arguments, grouped by the mistake of a library that misreads them; others are single."""

Allowed = Callable[[Any], bool]
Run = Callable[[Any], Verdict]


def may_be_one_misreading(one: KnownCause | Showing, other: KnownCause | Showing) -> bool:
    """Return whether the needs of two causes, or the cases of unminimized ones, show the same misreading."""
    return bool(_common(one, other)) and _one_library(one, other)


def one_misreading(one: KnownCause | Showing, other: KnownCause | Showing, run: Run, allowed: Allowed) -> bool:
    """Run the predictions of both causes. Returns whether the same misreading alone explains each of them."""
    return _Misreadings(run, allowed).same(one, other)


def known_misreading(showing: Showing, causes: Iterable[KnownCause], run: Run, allowed: Allowed) -> KnownCause | None:
    """Return the cause with the same misreading as a new finding, or None."""
    misreadings = _Misreadings(run, allowed)
    alike = (cause for cause in causes if may_be_one_misreading(cause, showing))
    return next((cause for cause in alike if misreadings.same(cause, showing)), None)


def _common(one: KnownCause | Showing, other: KnownCause | Showing) -> frozenset[frozenset[Feature]]:
    return _misreadings_of(one) & _misreadings_of(other)


def _misreadings_of(cause: KnownCause | Showing) -> frozenset[frozenset[Feature]]:
    """Return the misreading that a cause needs, if it needs just one. An unminimized cause needs all in its case."""
    found = ARGUMENTS & features_in(cause.case)
    if cause.needs:
        found = frozenset(each for each in found if each.name in cause.needs)
    misreadings = frozenset(
        next((group for group in MISREADINGS if each in group), frozenset({each})) for each in found
    )
    return misreadings if len(misreadings) == 1 or not cause.needs else frozenset()


def _one_library(one: KnownCause | Showing, other: KnownCause | Showing) -> bool:
    backends = one.case.backend, other.case.backend
    libraries = {library_of(each) for each in backends}
    return len(set(backends)) == 1 or (len(libraries) == 1 and "" not in libraries)


class _Misreadings:
    """Runs causes' cases, each once, with the features of one misreading and no other clue."""

    def __init__(self, run: Run, allowed: Allowed) -> None:
        self._run, self._allowed = run, allowed
        self._verdicts: dict[Hashable, Verdict] = {}

    def same(self, one: KnownCause | Showing, other: KnownCause | Showing) -> bool:
        """Return whether the same misreading alone explains each of two causes."""
        if not _one_library(one, other):
            return False
        for misreading in _common(one, other):
            # A kernel that misreads a tensor may fail in any way.
            first, second = self._shown(one.case, misreading), self._shown(other.case, misreading)
            if (first and second) if misreading <= TENSOR_FORMS else (first & second):
                return True
        return False

    def _shown(self, case: AnyCase, misreading: frozenset[Feature]) -> frozenset[tuple[str, str]]:
        """Return the kinds and places of failures with only this misreading; empty if it does not explain them."""
        alone = self._alone(case, misreading)
        if alone is None or not self._passes_plainly(alone, misreading):
            return frozenset()
        return frozenset(_kind_and_place(each) for each in self._failures(alone))

    def _alone(self, case: AnyCase, misreading: frozenset[Feature]) -> AnyCase | None:
        """Return the case without the other clues, or None if it needs one of them.

        Clues that the misread argument requires do not count as other clues: a mask with gaps requires a mask. Neither
        does NaN in memory, since a stray read finds these contents.
        """
        others, own = CLUES - CONTENTS - misreading, features_in(case) & misreading

        def allowed(variant: AnyCase) -> bool:
            return self._allowed(variant) and features_in(variant) & misreading == own

        # Repeat, because some clues can be removed only after others.
        for _ in range(2):
            case = plainest(case, lambda each: bool(self._failures(each)), allowed=allowed, among=others)
        return None if any(ablations(case, allowed=allowed, among=others)) else case

    def _passes_plainly(self, case: AnyCase, misreading: frozenset[Feature]) -> bool:
        plain = leave_out(case, misreading, self._allowed)
        if features_in(plain) & misreading:
            return False
        verdicts = [self._verdict(each) for each in reseeded(plain)]
        return not any(each.failures or each.unsupported is not None for each in verdicts)

    def _failures(self, case: AnyCase) -> tuple[Observation, ...]:
        """Return the failures of a case with the first seed that shows any."""
        return next((found for each in reseeded(case) if (found := self._verdict(each).failures)), ())

    def _verdict(self, case: AnyCase) -> Verdict:
        key = identity(case)
        if key not in self._verdicts:
            self._verdicts[key] = self._run(case)
        return self._verdicts[key]


def _kind_and_place(failure: Observation) -> tuple[str, str]:
    return "wrong" if failure.kind in WRONG else failure.kind, failure.place


@cache
def library_of(name: str) -> str:
    """Return the package with the kernels of the named backend, or "" if it has its own, or can't be found."""
    try:
        return package_of(resolve(name))
    except UserError:
        return ""
