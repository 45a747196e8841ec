"""Which metamorphic relations say something about a case, and can be tried on a backend."""

from msgspec.structs import replace

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.validity import ImpossibleCase, validate


def applicable(case: Case, capability: Capability) -> tuple[Relation, ...]:
    """The relations whose other case is possible, and covered by `capability` as `case` is, in the order of Relation.

    A relation that `case` may have already does not matter.
    """
    return tuple(relation for relation in Relation if _applies(replace(case, relation=relation), capability))


def _applies(case: Case, capability: Capability) -> bool:
    try:
        validate(case)
    except ImpossibleCase:
        return False
    return capability.why_not(case) is None
