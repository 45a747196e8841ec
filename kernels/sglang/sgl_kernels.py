"""Kernels of SGLang's own that need a GPU to be compiled, as calls of ours."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import torch

from attnfuzz.kernels.backend import Op
from attnfuzz.kernels.sglang import jit_modules


class Launches(Protocol):
    """Who runs them."""

    def op(self, function: str) -> Op:
        """The kernel of this name."""
        ...

    def launch(self, op: Op, arguments: dict[str, Any]) -> Any:
        """Launch it."""
        ...


_FIXED_UP: Final = frozenset({"out", "lse"})


def fixup_zero_kv_rows(
    below: Launches,
    out: torch.Tensor,
    lse: torch.Tensor,
    kv_lens: torch.Tensor,
    cum_seq_lens: torch.Tensor,
    max_seq_len: int,
    compiled: Callable[..., None] | None = None,
) -> None:
    """Zero keys give 0 and -inf (0.5.11, jit_kernel/fixup_zero_kv.py:26). `compiled` is SGLang's, where a GPU is."""
    arguments = {"out": out, "lse": lse, "kv_lens": kv_lens, "cum_seq_lens": cum_seq_lens, "max_seq_len": max_seq_len}
    op = below.op("fixup_zero_kv_rows") if compiled is None else Op("fixup_zero_kv_rows", compiled, _FIXED_UP)
    below.launch(op, arguments)


def compiled(below: Launches, function: Callable[..., Any], name: str, args: tuple[Any, ...]) -> object:
    """Any other kernel that a release compiles where a GPU is."""
    return below.launch(*jit_modules.launch_of(function, name, args))


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "fixup_zero_kv_rows": fixup_zero_kv_rows,
    "compiled": compiled,
}
"""By their names in SGLang."""
