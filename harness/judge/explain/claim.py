"""What an explanation says of a row, in a form that can be wrong: an answer for any row of any run, fitted once."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake


class Stake(StrEnum):
    """What changes in a further run of a case, in which a claim has to hold again.

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
"""The stakes of a claim about places: in a longer request it may be others."""

RULE = POSITIONS | {Stake.LENGTHS, Stake.QUERIES}
"""The stakes of a claim that holds for requests of every length."""

SCALED = RULE | {Stake.SCALES}
"""The stakes of a rule about a factor that the case states."""


class Aspect(StrEnum):
    """Which part of a row's result a claim is tested on."""

    OUT = "out"
    LSE = "lse"


@dataclass(frozen=True)
class Claim:
    """A typed hypothesis about wrong rows: `mistake` with its parameters, in `words` ("as if ...").

    `answer` gives the result of any row if the claim were true, None where the claim says nothing about the row. It
    keeps the parameters that were fitted on one row, and no tensor of it. `tried` is the number of candidates among
    which the fit chose, `stakes` the changes under which the claim has to hold, `aspect` what it is about.
    """

    mistake: Mistake
    words: str
    answer: Callable[[WrongRow], Alternative | None]
    stakes: frozenset[Stake] = RULE
    tried: int = 1
    aspect: Aspect = Aspect.OUT
