"""An attention call from its kernel's view: the derived batch, and each request's rows and keys."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.meaning.call_pool import Pool
from attnfuzz.kernels.meaning.entry_point import Arguments, Parameter, RequestSpan, Role
from attnfuzz.kernels.meaning.forms import tensor_of
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import workspace_bytes


@dataclass(frozen=True)
class Stated:
    """A number that a caller states, and its argument."""

    name: str
    value: int


@dataclass(frozen=True)
class Attention:
    """The facts about a call by which its caller's duties are judged.

    `batch` is the number of requests; it follows from the arguments in `batch_from`, as `batch_text` explains. `q_len`
    is set if all requests have equal q length. `spans` is empty for calls with metadata of another kind (block-sparse,
    sparse MLA). `query` names the tensor of the queries, `table`, `cum_q` and `cum_kv` metadata, None if the call has
    none. With `in_pages`, `cum_kv` may count pages instead of keys. FlashInfer compares the rows of a `checked_table`
    with the batch before the launch. `pool` is the target of page ids, None for packed keys. `halves` names K and V of
    a cache that the kernel takes by one pointer, each with its own page ids in a table of [requests, 2, columns].
    `masks` names the packed bits of all masks, and the first byte of each request's, None without masks; `intervals`
    the first and the last key of each query, None without them.
    `head_dim_vo` is that of the values. `window_left` is -1 without a window. `workspace` returns the kernel's needs,
    None if they are unknown. `lengths` names the KV lengths, and `first_keys` the rows of the first packed keys.
    """

    arguments: Arguments
    parameters: tuple[Parameter, ...]
    batch: int
    batch_from: tuple[str, ...]
    batch_text: str
    spans: tuple[RequestSpan, ...]
    max_kv: Stated
    head_dim_vo: int
    query: str = "query"
    q_len: int | None = None
    max_q: Stated | None = None
    table: str | None = None
    checked_table: bool = False
    cum_q: str | None = None
    cum_kv: str | None = None
    in_pages: bool = False
    pool: Pool | None = None
    halves: tuple[str, str] | None = None
    masks: tuple[str, str] | None = None
    intervals: tuple[str, str] | None = None
    window_left: int = -1
    workspace: Callable[[], WorkspaceBytes | None] = lambda: None
    lengths: str = "seq_lens"
    first_keys: str = "cum_seq_lens_kv"

    @property
    def key_places(self) -> tuple[str, ...]:
        """The arguments that say where packed keys lie."""
        return tuple(dict.fromkeys((self.first_keys, self.lengths)))

    @property
    def query_rows(self) -> int:
        """Number of query rows, over all requests."""
        (axes,) = (parameter.axes for parameter in self.parameters if parameter.name == self.query)
        sizes = zip(axes, tensor_of(self.arguments, self.query).shape, strict=True)
        return math.prod(size for axis, size in sizes if axis in {"requests", "tokens per request", "tokens"})

    def size(self, axis: str, *roles: Role) -> int:
        """Return the size of the first axis of a kind, in tensors of these roles, in their order; 0 if none has it."""
        for role in roles:
            for parameter in self.parameters:
                if parameter.role is role and axis in parameter.axes:
                    return tensor_of(self.arguments, parameter.name).shape[parameter.axes.index(axis)]
        return 0

    @property
    def packed_keys(self) -> tuple[str, ...]:
        """The tensors of packed keys and values; the tensor of the queries if all three share it."""
        names = tuple(parameter.name for parameter in self.parameters if "kv tokens" in parameter.axes)
        return names or (self.query,)


_LONGEST = 1 << 31
"""Larger stated maxima do not change a native kernel's workspace; recorded ones may be any integer."""


def native_workspace(*, q_len: int | None, max_seq_len: int, **sizes: int) -> WorkspaceBytes | None:
    """Return the workspace of the native kernels in a decode; None without a compiler, or if q lengths differ."""
    if q_len is None or build.missing() is not None:
        return None
    return workspace_bytes(q_len=q_len, max_seq_len=max(0, min(max_seq_len, _LONGEST)), **sizes)
