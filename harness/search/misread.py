"""Whether two causes are one argument that a library misreads, at one entry point or several.

A library checks an argument, or does not, by its purpose: metadata that is on the device already is taken
as it is, outputs by their addresses. The same omission shows at each entry point, in another argument, and in whatever
way the kernel fails that misreads it. Another entry point may lack the argument of the first, so that neither case can
be moved to the other's kernel. Each case predicts by itself instead: it fails in the form, without all other clues, and
passes with the argument in its plain form. Two such cases are one cause if their forms are in one of `MISREADINGS`, and
their backends are of one library. Where the argument is a number, an option or an object, they also have to fail alike.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from functools import cache
from typing import Final

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.reduce import identity
from attnfuzz.harness.reduce.ablation import (
    ARGUMENTS,
    CLUES,
    CONTENTS,
    FEATURES,
    TENSOR_FORMS,
    Feature,
    ablations,
    features_in,
    reseeded,
)
from attnfuzz.harness.reduce.plainest import leave_out, plainest
from attnfuzz.harness.search.known import KnownCause, Showing
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import WRONG
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.libraries.installed import Installed
from attnfuzz.reference.arguments import (
    FLOATS_OF_ANOTHER_WIDTH,
    INPUTS_NOT_DENSE,
    METADATA_NOT_DENSE_INT32,
    OUTPUTS_NOT_DENSE,
    ArgumentForm,
)
from attnfuzz.reference.case import Case
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
"""Forms and edges of arguments by the mistake of a library that reads the arguments. Others are groups of their own."""

Allowed = Callable[[Case], bool]
Run = Callable[[Case], Verdict]


def may_be_one_misreading(one: KnownCause | Showing, other: KnownCause | Showing) -> bool:
    """Whether the needs of two causes, or the cases of those that were not minimized, show the same misreading."""
    return bool(_common(one, other)) and _one_library(one, other)


def one_misreading(one: KnownCause | Showing, other: KnownCause | Showing, run: Run, allowed: Allowed) -> bool:
    """Run the predictions of both causes: whether the same misreading explains each by itself."""
    return _Misreadings(run, allowed).same(one, other)


def known_misreading(showing: Showing, causes: Iterable[KnownCause], run: Run, allowed: Allowed) -> KnownCause | None:
    """Return the cause of the same misreading as a new finding; None if there is none."""
    misreadings = _Misreadings(run, allowed)
    alike = (cause for cause in causes if may_be_one_misreading(cause, showing))
    return next((cause for cause in alike if misreadings.same(cause, showing)), None)


def _common(one: KnownCause | Showing, other: KnownCause | Showing) -> frozenset[frozenset[Feature]]:
    return _misreadings_of(one) & _misreadings_of(other)


def _misreadings_of(cause: KnownCause | Showing) -> frozenset[frozenset[Feature]]:
    """The one that a cause needs; none if it needs several, and those of its whole case if it was not minimized."""
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
    """Runs of causes' cases with the features of one misreading, and no other clue; each case is run once."""

    def __init__(self, run: Run, allowed: Allowed) -> None:
        self._run, self._allowed = run, allowed
        self._verdicts: dict[Hashable, Verdict] = {}

    def same(self, one: KnownCause | Showing, other: KnownCause | Showing) -> bool:
        """Whether the same misreading explains each of two causes by itself."""
        if not _one_library(one, other):
            return False
        for misreading in _common(one, other):
            # A kernel that misreads a tensor may do anything.
            first, second = self._shown(one.case, misreading), self._shown(other.case, misreading)
            if (first and second) if misreading <= TENSOR_FORMS else (first & second):
                return True
        return False

    def _shown(self, case: Case, misreading: frozenset[Feature]) -> frozenset[tuple[str, str]]:
        """The kinds and places of the failures of the case so; none if it needs another clue, or fails plainly too."""
        alone = self._alone(case, misreading)
        if alone is None or not self._passes_plainly(alone, misreading):
            return frozenset()
        return frozenset(_kind_and_place(each) for each in self._failures(alone))

    def _alone(self, case: Case, misreading: frozenset[Feature]) -> Case | None:
        """The case without the other clues; None if it needs one of them.

        One that the misread argument itself can't do without, as a mask with gaps needs a mask, is no other clue. Nor
        is NaN in memory: a stray read finds the contents there.
        """
        others, own = CLUES - CONTENTS - misreading, features_in(case) & misreading

        def allowed(variant: Case) -> bool:
            return self._allowed(variant) and features_in(variant) & misreading == own

        # Twice: some can be left out only after another.
        for _ in range(2):
            case = plainest(case, lambda each: bool(self._failures(each)), allowed=allowed, among=others)
        return None if any(ablations(case, allowed=allowed, among=others)) else case

    def _passes_plainly(self, case: Case, misreading: frozenset[Feature]) -> bool:
        plain = leave_out(case, misreading, self._allowed)
        if features_in(plain) & misreading:
            return False
        verdicts = [self._verdict(each) for each in reseeded(plain)]
        return not any(each.failures or each.unsupported is not None for each in verdicts)

    def _failures(self, case: Case) -> tuple[Observation, ...]:
        """The failures of a case with the first seed that shows some."""
        return next((found for each in reseeded(case) if (found := self._verdict(each).failures)), ())

    def _verdict(self, case: Case) -> Verdict:
        key = identity(case)
        if key not in self._verdicts:
            self._verdicts[key] = self._run(case)
        return self._verdicts[key]


def _kind_and_place(failure: Observation) -> tuple[str, str]:
    return "wrong" if failure.kind in WRONG else failure.kind, failure.place


_COMPILERS = frozenset({"triton"})
"""Packages that compile the kernels of several projects."""


@cache
def library_of(name: str) -> str:
    """The package with the kernels of the backend called `name`; "" if it has its own, or can't be found."""
    try:
        backend = resolve(name)
    except UserError:
        return ""
    if isinstance(backend, GpuBackend):
        return next(iter(backend.needs), "" if backend.own else "torch")
    package = next(iter(backend.packages), "torch") if isinstance(backend, Installed) else ""
    return "" if package in _COMPILERS else package
