"""Two runs of a case that differ: the calls of both, and the rows of one that correspond to rows of the other."""

from dataclasses import dataclass
from typing import Any

from attnfuzz.harness.export.body import ScriptContents
from attnfuzz.harness.export.carried import CannotExport
from attnfuzz.harness.export.limits import Bounds
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.tiers import ALPHA
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case
from attnfuzz.reference.related import related
from attnfuzz.reference.relation import Relation


@dataclass(frozen=True)
class Runs:
    """The calls of the `first` run and of the one in `relation` to it, whose request at `positions[p]` is p's."""

    first: CallCase
    second: CallCase
    relation: Relation
    positions: tuple[int, ...]

    def values(self, backend: Backend, seen: Observation, contents: ScriptContents) -> dict[str, Any]:
        """Return the values of the template that compares the runs; `contents` gets the largest differences."""
        assert self.first.answer is not None
        assert self.second.answer is not None
        ones, others = self.first.answer.requests, self.second.answer.requests
        bitwise = backend.contract.keeps_bits(self.relation)
        bounds = Bounds(self.first, backend, seen, ALPHA)
        apart = bounds.apart(seen.place, self.second.answer.roundings, bitwise=bitwise)
        pairs = [(one, others[at]) for one, at in zip(ones, self.positions, strict=True)]
        return {
            "place": 1 if seen.place == "lse" else 0,
            "requests": [
                (one.first_row, other.first_row, one.query.shape[0], one.key.shape[0]) for one, other in pairs
            ],
            "bitwise": bitwise,
            "apart": contents.numbers(apart, "allowed difference"),
            "relation": self.relation.words,
        }


def runs_of(case: Case, seen: Observation, first: CallCase | None, second: CallCase) -> Runs:
    """Return both runs of a case with a relation, of which `seen` is the difference. Raises CannotExport."""
    assert case.relation is not None
    positions = related(case).positions[seen.step]
    if first is None or first.answer is None or second.answer is None:
        raise CannotExport("two runs differ, but the calls of one of them give no output")
    if not len(first.answer.requests) == len(second.answer.requests) == len(positions):
        raise CannotExport("two runs differ, in rows that code outside of the kernels wrote after their calls")
    return Runs(first, second, case.relation, positions)
