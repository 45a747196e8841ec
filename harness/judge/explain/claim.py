"""A claim: a falsifiable explanation, which is fitted once, and predicts any row of any run."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake


class Stake(StrEnum):
    """A change in a further run, under which a claim has to hold again.

    VALUES: the seed of queries, keys and values. FAMILY: normal numbers instead of the case's values. SCALES: the
    factors of logits, keys and values. LENGTHS: longer requests, and a wider window if there is one. QUERIES: more
    queries in each request.
    """

    VALUES = "other values"
    FAMILY = "normal values"
    SCALES = "other scales"
    LENGTHS = "longer requests"
    QUERIES = "more queries"


POSITIONS = frozenset({Stake.VALUES, Stake.FAMILY})
"""The stakes of a claim about positions, which may differ in a longer request."""

RULE = POSITIONS | {Stake.LENGTHS, Stake.QUERIES}
"""The stakes of a claim that holds for requests of every length."""

SCALED = RULE | {Stake.SCALES}
"""The stakes of a rule about a factor that is given by the case."""


class Aspect(StrEnum):
    """The part of a row's result on which a claim is tested."""

    OUT = "out"
    LSE = "lse"


@dataclass(frozen=True)
class Claim:
    """A typed hypothesis about wrong rows: `mistake` with its parameters, in `words` ("as if ...").

    `answer` returns a row's result if the claim were true, or None where the claim doesn't apply. It keeps the
    parameters fitted on one row, and none of its tensors. `tried` is the number of candidates among which the fit
    chose, `stakes` are the changes under which the claim has to hold, and `aspect` is the result that it is about.
    `page` is the column of the row's page table, and the wrong page id in it, that a claim about pages names.
    """

    mistake: Mistake
    words: str
    answer: Callable[[WrongRow], Alternative | None]
    stakes: frozenset[Stake] = RULE
    tried: int = 1
    aspect: Aspect = Aspect.OUT
    page: tuple[int, int] | None = None
