"""The types that describe an entry point: what its tensors are, the requests of a call, broken preconditions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from attnfuzz.kernels.ops_table import WorkspaceBytes

Arguments = Mapping[str, Any]
"""A call's arguments by name: torch tensors, tuples of them, and scalars."""


class Role(StrEnum):
    """What a tensor argument is to a kernel."""

    QUERY = "queries"
    KEY = "keys"
    VALUE = "values"
    CACHE = "KV cache"
    PAGE_TABLE = "page table"
    KV_LENGTHS = "KV lengths"
    CUM_Q = "cumulative q lengths"
    CUM_KV = "cumulative KV lengths"
    SINKS = "sinks"
    OUT = "output"
    LSE = "LSE"
    WORKSPACE = "workspace"
    OTHER = "other"


@dataclass(frozen=True)
class Parameter:
    """One tensor of a call. `name` is the argument's, with "[0]" or "[1]" for a member of a pair, also within another.

    `axes` says what each dimension counts, in the words of the vocabulary: "requests", "requests + 1", "tokens",
    "tokens per request", "q heads", "kv heads", "qk dim", "vo dim", "pages", "slots", "columns", "kv tokens", "bytes",
    "K and V", "Q, K and V", or "" for what counts nothing else. Dimensions of the same axis have the same size in a
    call that is right, but for "columns", "bytes" and those of several tensors in one.
    """

    name: str
    role: Role
    axes: tuple[str, ...]


@dataclass(frozen=True)
class RequestSpan:
    """One request of a call, as the kernel derives it: which query rows it answers, which keys it reads.

    `pages` are the page ids in order, as many as `kv_len` needs, for a paged KV cache; `first_key` is the row of the
    first key otherwise. `inside` tells whether all metadata of this request lies inside of its tensors: what lies
    outside is not here.
    """

    first_row: int
    q_len: int
    kv_len: int
    pages: tuple[int, ...] = ()
    first_key: int = 0
    inside: bool = True


@dataclass(frozen=True)
class Breach:
    """A precondition that a call breaks: its caller's fault, whatever the kernel then does.

    `arguments` are the names that the breach is about, `text` says with values what is wrong and what it leads to,
    `source` where the precondition is stated. `request` is the first that it concerns, -1 for the call as a whole.
    """

    arguments: tuple[str, ...]
    text: str
    source: str
    request: int = -1


class EntryPoint(Protocol):
    """One of FlashInfer's functions."""

    @property
    def name(self) -> str:
        """Its name, which is that of an Op."""
        ...

    @property
    def module(self) -> str | None:
        """The module that has it, None for what only this project has."""
        ...

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """The tensors of a call, in the order of the arguments. Raises ValueError for one that it can't have."""
        ...

    def spans(self, arguments: Arguments) -> tuple[RequestSpan, ...]:
        """The requests of a call, as the kernel takes them from its arguments; none for what has no requests."""
        ...

    def breaches(self, arguments: Arguments) -> tuple[Breach, ...]:
        """The preconditions that a call breaks, the one that explains most first."""
        ...

    def workspace(self, arguments: Arguments) -> WorkspaceBytes | None:
        """What a call uses of its workspace, None if that is not known. Raises ValueError as `parameters` does."""
        ...


def and_others(requests: Sequence[int]) -> str:
    """How many more requests than the first of these are concerned, to be put behind what is said of it."""
    if len(requests) == 1:
        return ""
    return f" (and so for {len(requests) - 1} more request{'' if len(requests) == 2 else 's'})"


def listed(names: Sequence[str]) -> str:
    """Such as "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
