"""The types that describe an entry point: the roles of its tensors, the requests of a call, broken preconditions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import torch

from attnfuzz.kernels.interface.ops_table import WorkspaceBytes

Arguments = Mapping[str, Any]
"""A call's arguments by name: torch tensors, tuples of them, and scalars."""


class Role(StrEnum):
    """The role of a tensor argument."""

    QUERY = "queries"
    KEY = "keys"
    VALUE = "values"
    CACHE = "KV cache"
    PAGE_TABLE = "page table"
    KV_LENGTHS = "KV lengths"
    CUM_Q = "cumulative q lengths"
    CUM_KV = "cumulative KV lengths"
    MASK = "packed masks"
    MASK_STARTS = "first bytes of masks"
    INTERVALS = "first or last keys of queries"
    SINKS = "sinks"
    OUT = "output"
    LSE = "LSE"
    WORKSPACE = "workspace"
    OTHER = "other"


@dataclass(frozen=True)
class Parameter:
    """One tensor of a call. `name` is the argument's, with an index such as "[0]" for each level of sequences.

    `axes` names the quantity that each dimension counts: "requests", "requests + 1", "tokens", "tokens per request",
    "q heads", "kv heads", "qk dim", "vo dim", "pages", "slots", "columns", "kv tokens", "bytes", "K and V",
    "Q, K and V", or "" for any other. In a correct call, dimensions of equal axes have equal sizes, except "columns",
    "bytes" and those of several tensors in one.
    """

    name: str
    role: Role
    axes: tuple[str, ...]


@dataclass(frozen=True)
class RequestSpan:
    """One request of a call, as the kernel derives it: its query rows and its keys.

    For a paged KV cache, `pages` are the page ids in order, as many as `kv_len` needs; otherwise `first_key` is the row
    of the first key. `inside`: all metadata of this request lies inside its tensors; metadata outside is left out.
    """

    first_row: int
    q_len: int
    kv_len: int
    pages: tuple[int, ...] = ()
    first_key: int = 0
    inside: bool = True


@dataclass(frozen=True)
class Breach:
    """A precondition that a call breaks: the caller's fault, whatever the kernel does then.

    `arguments` are the names of the arguments at fault, `text` states the error with values and its consequence,
    `source` documents the precondition. `request` is the first one affected, -1 for the whole call.
    """

    arguments: tuple[str, ...]
    text: str
    source: str
    request: int = -1


class EntryPoint(Protocol):
    """A function of a library, or of this project."""

    @property
    def name(self) -> str:
        """Its name, equal to that of its Op."""

    @property
    def module(self) -> str | None:
        """The library's module of the function, None for a function of this project."""

    @property
    def masked(self) -> bool:
        """Whether its requests may have masks of their own, which an answer can't express."""

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call, in the order of the arguments. Raises ValueError for impossible ones."""

    def spans(self, arguments: Arguments) -> tuple[RequestSpan, ...]:
        """Return the requests that the kernel derives from a call's arguments; none for a kernel without requests."""

    def breaches(self, arguments: Arguments) -> tuple[Breach, ...]:
        """Return the preconditions that a call breaks, the most explanatory one first."""

    def mask(self, arguments: Arguments, span: RequestSpan) -> torch.Tensor | None:
        """Return the keys that the queries of a request see besides a window, bool [q_len, kv_len]; None without one.

        Without one, a request is causal, or as `causal` says.
        """

    def leaves_empty_rows(self, arguments: Arguments) -> bool:
        """Return whether a call leaves the rows of requests without keys unwritten."""

    def workspace(self, arguments: Arguments) -> WorkspaceBytes | None:
        """Return the workspace that a call uses, None if unknown. Raises ValueError as `parameters` does."""


def and_others(requests: Sequence[int]) -> str:
    """Word the number of requests beyond the first, to follow a statement about it; "" if there are none."""
    if len(requests) == 1:
        return ""
    return f" (and {len(requests) - 1} more request{'' if len(requests) == 2 else 's'})"


def listed(names: Sequence[str]) -> str:
    """Join names as in "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
