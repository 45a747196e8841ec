"""What a backend promises beyond the right numbers: the clauses that a judge may hold it to."""

from enum import StrEnum

import msgspec


class LseBase(StrEnum):
    """The logarithm of a log-sum-exp: TWO is FlashInfer's default, E is flash-attention's."""

    TWO = "2"
    E = "e"


class Holds(StrEnum):
    """What rows without an answer hold."""

    ZERO = "zero"
    FINITE = "finite"
    ANYTHING = "anything"


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's promises; the defaults are the strictest.

    `lse` is the base of the LSE that a backend returns, None if it returns none. `empty_rows` is what a row that sees
    no key holds, `padded_rows` what a row of no request holds. `deterministic`: the same call gives the same bits.
    `sources` maps each clause that is more permissive than the default to the docstring, header, check or upstream
    test that says so: observed behaviour is no source.
    """

    lse: LseBase | None = None
    empty_rows: Holds = Holds.ZERO
    padded_rows: Holds = Holds.FINITE
    deterministic: bool = True
    sources: dict[str, str] = {}

    def __post_init__(self) -> None:
        strictest = {"empty_rows": Holds.ZERO, "padded_rows": Holds.FINITE, "deterministic": True}
        for clause, strict in strictest.items():
            if getattr(self, clause) != strict and clause not in self.sources:
                raise ValueError(f"contract clause {clause} is permissive: name its source")

    def strict(self) -> "Contract":
        """The same backend held to the best of all."""
        return Contract(lse=self.lse)
