"""Drawing the metamorphic relation of a case, if any."""

from functools import cache

from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.relation import Relation
from attnfuzz.strategies.choices import Choice, WeightedFlag
from attnfuzz.strategies.lean import Lean

# A related run costs a second run of the kernels, but no second reference.
_RELATED = WeightedFlag(3, 1, tuple(f"relation={each.words}" for each in Relation))

# Few cases are replayed or cut into chunks, so these are drawn more often where they apply.
_RARE = (Relation.REPLAY_AS_EAGER, Relation.CHUNKS_CHANGED)
_TIMES_RARE = 4


def draw_relation(draw: DrawFn, case: Case, can: Capability, lean: Lean) -> Relation | None:
    """Draw a relation that applies to `case`, in a quarter of the cases."""
    return draw(_one_of(applicable(case, can)).under(lean)) if draw(_RELATED.under(lean)) else None


@cache
def _one_of(relations: tuple[Relation, ...]) -> Choice[Relation]:
    weighed = tuple(each for each in relations for _ in range(_TIMES_RARE if each in _RARE else 1))
    return Choice(weighed, lambda each: (f"relation={each.words}",))


def applicable(case: Case, capability: Capability) -> tuple[Relation, ...]:
    """Return the relations whose other case is possible and supported by `capability`, in the order of Relation.

    The present relation of `case` is ignored.
    """
    plain = replace(case, relation=None)
    if not capability.can_run(plain):
        return ()
    return tuple(relation for relation in Relation if capability.can_relate(replace(plain, relation=relation)))
