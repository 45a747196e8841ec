"""The search: try edits, biggest cuts first, and keep what still fails."""

from collections.abc import Callable, Iterable, Iterator

from attnfuzz.harness.reduce.geometry import EDITS as GEOMETRY
from attnfuzz.harness.reduce.lengths import EDITS as LENGTHS
from attnfuzz.harness.reduce.plain import EDITS as PLAIN
from attnfuzz.harness.reduce.relation import EDITS as RELATION
from attnfuzz.harness.reduce.steps import EDITS as STEPS
from attnfuzz.reference.case import Case
from attnfuzz.reference.validity import ImpossibleCase, validate

Edit = Callable[[Case], Iterable[Case]]

EDITS: tuple[Edit, ...] = (*RELATION, *STEPS, *PLAIN, *LENGTHS, *GEOMETRY)


def reduce(
    case: Case,
    still_fails: Callable[[Case], bool],
    *,
    allowed: Callable[[Case], bool] = lambda _: True,
    budget: int = 500,
) -> Case:
    """The smallest case that edits lead to from `case`, which is taken to fail, while `still_fails` holds.

    Candidates that are impossible or not `allowed` (by a capability, say) are passed over. Ends when no edit helps, or
    after `budget` calls of `still_fails`. The same arguments give the same result.
    """
    candidates = _Candidates(allowed)
    progress = True
    while progress:
        progress = False
        for edit in EDITS:
            tried = candidates.new(edit(case))
            while (candidate := next(tried, None)) is not None:
                if budget == 0:
                    return case
                budget -= 1
                if still_fails(candidate):
                    case, progress = candidate, True
                    tried = candidates.new(edit(case))
    return case


class _Candidates:
    """Tells which candidates are worth a try: possible, allowed, and not tried before."""

    def __init__(self, allowed: Callable[[Case], bool]) -> None:
        self._allowed = allowed
        self._seen: set[Case] = set()

    def new(self, edited: Iterable[Case]) -> Iterator[Case]:
        for candidate in edited:
            if candidate not in self._seen:
                self._seen.add(candidate)
                if _possible(candidate) and self._allowed(candidate):
                    yield candidate


def _possible(case: Case) -> bool:
    try:
        validate(case)
    except ImpossibleCase:
        return False
    return True
