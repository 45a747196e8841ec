"""An attention call as its kernel takes it: the batch that it derives, and each request's rows and keys."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from attnfuzz.kernels.entry_points.entry_point import Arguments, Parameter, RequestSpan
from attnfuzz.kernels.entry_points.forms import tensor_of
from attnfuzz.kernels.entry_points.pool import Pool
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import workspace_bytes
from attnfuzz.kernels.ops_table import WorkspaceBytes


@dataclass(frozen=True)
class Stated:
    """A number that a caller states, and the argument in which it does."""

    name: str
    value: int


@dataclass(frozen=True)
class Attention:
    """What the duties of a caller are judged by.

    `batch` requests follow from the arguments in `batch_from`, as `batch_text` says; if they are of equal q length,
    that is `q_len`. `spans` are none where the call has metadata of another kind (block-sparse, sparse MLA). `query`
    names the tensor of the queries, `table`, `cum_q` and `cum_kv` metadata, None for what the call has not; rows of a
    `checked_table` are compared with the batch before the launch. `pool` is what page ids are about, None for packed
    keys. `halves` names K and V of a cache that the kernel takes by one pointer, each with page ids of its own in a
    table of [requests, 2, columns]. `head_dim_vo` is that of the values. `window_left` is -1 without a window.
    `workspace` tells what a kernel uses, None if that is not known.
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
    pool: Pool | None = None
    halves: tuple[str, str] | None = None
    window_left: int = -1
    workspace: Callable[[], WorkspaceBytes | None] = lambda: None

    @property
    def query_rows(self) -> int:
        """Rows of the queries, over all requests."""
        (axes,) = (parameter.axes for parameter in self.parameters if parameter.name == self.query)
        sizes = zip(axes, tensor_of(self.arguments, self.query).shape, strict=True)
        return math.prod(size for axis, size in sizes if axis in {"requests", "tokens per request", "tokens"})

    @property
    def packed_keys(self) -> tuple[str, ...]:
        """The tensors of packed keys and values; that of the queries where they are in one."""
        names = tuple(parameter.name for parameter in self.parameters if "kv tokens" in parameter.axes)
        return names or (self.query,)


_LONGEST = 1 << 31
"""No stated maximum that is larger changes what a native kernel uses; a recorded one may be any integer."""


def native_workspace(*, q_len: int | None, max_seq_len: int, **sizes: int) -> WorkspaceBytes | None:
    """What the native kernels use of a workspace in a decode; None where no compiler is, or q lengths differ."""
    if q_len is None or build.missing() is not None:
        return None
    return workspace_bytes(q_len=q_len, max_seq_len=max(0, min(max_seq_len, _LONGEST)), **sizes)
