"""Contracts: the promises of a backend besides a correct output, which the judge checks."""

from enum import StrEnum

import msgspec

from attnfuzz.reference.checked_fields import check_fields
from attnfuzz.reference.relation import Relation


class LseBase(StrEnum):
    """Base of a log-sum-exp: TWO is FlashInfer's default, E is flash-attention's."""

    TWO = "2"
    E = "e"


class Holds(StrEnum):
    """Promised contents of rows without attention: empty or padded ones."""

    ZERO = "zero"
    FINITE = "finite"
    ANYTHING = "anything"


PAGE_IDS = frozenset({Relation.PAGES_RELABELLED})


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's promises. The defaults are the strictest that apply to a library that makes no statement.

    `lse` is the base of the LSE that a backend returns, or None if it returns none. `empty_rows` are the contents of
    rows that see no key, `padded_rows` those of rows that belong to no request. `deterministic`: the same call gives
    the same bits. `bitwise` are the other relations that preserve bits; all others only preserve the output within the
    error of a correct run. Its default is page ids alone: the order of summation must not depend on them. No library
    promises the same for the batch, since kernels choose their splits by its size (He and Thinking Machines, "Defeating
    Nondeterminism in LLM Inference", 2025).

    `sources` maps each clause that is more permissive than the default to a docstring, header, check or upstream test
    that states it; observed behaviour is not a source.
    """

    lse: LseBase | None = None
    empty_rows: Holds = Holds.ZERO
    padded_rows: Holds = Holds.FINITE
    deterministic: bool = True
    bitwise: frozenset[Relation] = PAGE_IDS
    sources: dict[str, str] = {}

    def __post_init__(self) -> None:
        check_fields(self)
        strictest = {"empty_rows": Holds.ZERO, "padded_rows": Holds.FINITE, "deterministic": True}
        for clause, strict in strictest.items():
            if getattr(self, clause) != strict and clause not in self.sources:
                raise ValueError(f"contract clause {clause} is permissive: name its source")
        if not self.bitwise >= PAGE_IDS and "bitwise" not in self.sources:
            raise ValueError("contract clause bitwise is permissive: name its source")
        if Relation.SAME_CALL in self.bitwise:
            raise ValueError("contract clause bitwise has same_call: use deterministic for it")

    def strict(self) -> "Contract":
        """Return the strictest contract, which is also invariant to the batch, to padding and to graphs."""
        others = {each for each in Relation if each is not Relation.SAME_CALL and not each.reorders_sums}
        return Contract(lse=self.lse, bitwise=self.bitwise | others)

    def keeps_bits(self, relation: Relation) -> bool:
        """Return whether a related run must give the same bits, and not just the same output within error bounds."""
        return self.deterministic and (relation is Relation.SAME_CALL or relation in self.bitwise)
