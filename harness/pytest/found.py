"""The outcome of a fuzz test."""

from typing import NamedTuple


class Found(NamedTuple):
    """The findings of a fuzz test as texts: `new` ones, those `known` to the ledger, and a line on how to go on."""

    new: list[str]
    known: list[str]
    again: str
