"""Deciding whether two causes are one argument that a library misreads, at one entry point or several.

A library that does not check an argument omits that at all entry points, which may lack each other's arguments, so
that neither case can be moved to the other's kernel. Instead, each case makes its own predictions: it fails with the
form of the argument and no other clue, and passes with the plain form. Two such cases are one cause if their forms are
in one of `MISREADINGS` and their backends belong to one library. If the argument is a number, an option or an object,
they also have to fail alike.
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
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
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


def may_be_one_misreading(one: KnownCause, other: KnownCause) -> bool:
    """Return whether the needs of two causes, or the cases of unminimized ones, show the same misreading."""
    libraries = {library_of(each.case.backend) for each in (one, other)}
    one_library = one.case.backend == other.case.backend or (len(libraries) == 1 and "" not in libraries)
    return one_library and bool(_misreadings_of(one) & _misreadings_of(other))


def one_misreading(one: KnownCause, other: KnownCause, run: Run, allowed: Allowed) -> bool:
    """Run the predictions of both causes. Returns whether the same misreading alone explains each of them."""
    if not may_be_one_misreading(one, other):
        return False
    for misreading in _misreadings_of(one) & _misreadings_of(other):
        first, second = (_shown(each.case, misreading, run, allowed) for each in (one, other))
        # A kernel that misreads a tensor may fail in any way.
        if (first and second) if misreading <= TENSOR_FORMS else (first & second):
            return True
    return False


def known_misreading(found: KnownCause, causes: Iterable[KnownCause], run: Run, allowed: Allowed) -> KnownCause | None:
    """Return the cause with the same misreading as a new finding, or None."""
    verdicts: dict[Hashable, Verdict] = {}

    def run_once(case: AnyCase) -> Verdict:
        key = identity(case)
        if key not in verdicts:
            verdicts[key] = run(case)
        return verdicts[key]

    return next((each for each in causes if one_misreading(each, found, run_once, allowed)), None)


def _misreadings_of(cause: KnownCause) -> frozenset[frozenset[Feature]]:
    """Return the misreading that a cause needs, if it needs just one. An unminimized cause needs all in its case."""
    found = ARGUMENTS & features_in(cause.case)
    if cause.needs:
        found = frozenset(each for each in found if each.name in cause.needs)
    misreadings = frozenset(
        next((group for group in MISREADINGS if each in group), frozenset({each})) for each in found
    )
    return misreadings if len(misreadings) == 1 or not cause.needs else frozenset()


def _shown(case: AnyCase, misreading: frozenset[Feature], run: Run, allowed: Allowed) -> frozenset[tuple[str, str]]:
    """Return the families and places of failures with only this misreading; empty if it does not explain them.

    Clues that the misread argument requires do not count as other clues: a mask with gaps requires a mask. Neither does
    NaN in memory, since a stray read finds these contents.
    """
    others, own = CLUES - CONTENTS - misreading, features_in(case) & misreading

    def keeps(variant: AnyCase) -> bool:
        return allowed(variant) and features_in(variant) & misreading == own

    def failures(variant: AnyCase) -> frozenset[tuple[str, str]]:
        """Return the failures with the first seed that shows any."""
        found = (run(each).failures for each in reseeded(variant))
        first = next(filter(None, found), ())
        return frozenset((Fingerprint.of(variant.backend, each).family, each.place) for each in first)

    # Twice, because some clues can be removed only after others.
    for _ in range(2):
        case = plainest(case, lambda each: bool(failures(each)), allowed=keeps, among=others)
    plain = leave_out(case, misreading, allowed)
    if any(ablations(case, allowed=keeps, among=others)) or features_in(plain) & misreading:
        return frozenset()
    verdicts = [run(each) for each in reseeded(plain)]
    return frozenset() if any(each.failures or each.unsupported is not None for each in verdicts) else failures(case)


@cache
def library_of(name: str) -> str:
    """Return the package with the kernels of the named backend, or "" if it has its own, or can't be found."""
    try:
        return package_of(resolve(name))
    except UserError:
        return ""
