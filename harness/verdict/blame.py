"""Whose fault a failure is."""

from enum import StrEnum

import msgspec


class Blame(StrEnum):
    """Whose fault it is: the caller's (a planner, a server), the kernel's, unknown, or nothing fails."""

    CALLER = "caller"
    KERNEL = "kernel"
    UNCLEAR = "unclear"
    NONE = "none"

    @property
    def words(self) -> str:
        """The end of a headline, "" if nothing fails."""
        return _WORDS[self]


_WORDS = {
    Blame.CALLER: "the caller is at fault",
    Blame.KERNEL: "the kernel is at fault",
    Blame.UNCLEAR: "whose fault is undecided",
    Blame.NONE: "",
}


class Blamed(msgspec.Struct, frozen=True, kw_only=True):
    """The short result of a triage: a conclusion in one line, and the sentences that support it most."""

    fault: Blame
    conclusion: str
    sentences: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it, a line each."""
        return "\n".join((self.conclusion, *self.sentences))
