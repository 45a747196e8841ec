"""The run of FlashInfer's planned wrapper for masks of blocks that differ from head to head."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from msgspec.structs import replace

from attnfuzz.harness.dumps.planned_run import PACKED, PlannedRun
from attnfuzz.kernels.meaning import Breach, Parameter, RequestSpan
from attnfuzz.kernels.meaning.forms import parameters_of
from attnfuzz.reference.calls import View

_DOCUMENTED: Final = "FlashInfer, docstring of VariableBlockSparseAttentionWrapper.plan"

_HEADS_FIRST: Final = frozenset({"q", "k", "v", "out", "lse"})
_MASK: Final = frozenset({"block_mask_map", "block_row_sz", "block_col_sz"})


@dataclass(frozen=True)
class PlannedHeads(PlannedRun):
    """The run of VariableBlockSparseAttentionWrapper, or the part of one KV head: one request under a mask.

    Its tensors are [heads, tokens, ...]. Query heads of one KV head share its mask.
    """

    indptr: str = "block_mask_map"
    head: int = 0

    refused: ClassVar[tuple[str, ...]] = ("causal", "q_scale", "k_scale", "v_scale")

    def parts(self, known: Mapping[str, Any]) -> tuple[PlannedRun, ...]:
        """Return a part for each KV head. Raises ValueError for a plan without masks of heads."""
        masks = known.get("block_mask_map")
        if not isinstance(masks, View) or len(masks.shape) != 3:
            raise ValueError("its block_mask_map has no masks of heads")
        return tuple(PlannedHeads(head=head) for head in range(masks.shape[0]))

    def own(self, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of one KV head, tokens first."""
        heads = known["block_mask_map"].shape[0]
        found = dict(known)
        for name, value in known.items():
            if isinstance(value, View) and name in _MASK:
                found[name] = replace(_heads(value, self.head, 1), shape=value.shape[1:], stride=value.stride[1:])
            elif isinstance(value, View) and name in _HEADS_FIRST and len(value.shape) >= 2:
                group = value.shape[0] // heads
                found[name] = _tokens_first(_heads(value, self.head * group, group))
        return found

    def parameters(self, arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the tensors of plan and run. Raises ValueError for impossible ones."""
        return parameters_of(arguments, PACKED, ("query", "key", "value", "out", *sorted(_MASK)))

    def spans(self, arguments: Mapping[str, Any]) -> tuple[RequestSpan, ...]:
        """Return the only request: all queries, and all keys."""
        return (RequestSpan(0, len(arguments["query"]), len(arguments["key"])),)

    def mask(self, arguments: Mapping[str, Any]) -> torch.Tensor:
        """Return the keys that each query sees, bool [queries, keys], of a call that breaks nothing."""
        rows, columns = (arguments[name].long() for name in ("block_row_sz", "block_col_sz"))
        mask: torch.Tensor = arguments["block_mask_map"].bool()
        return mask.repeat_interleave(rows, dim=0).repeat_interleave(columns, dim=1)

    def breaches(self, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
        """Return the first list of sizes that does not fit the masks or the tensors."""
        counts = arguments["block_mask_map"].shape
        for axis, (name, given) in enumerate((("block_row_sz", "query"), ("block_col_sz", "key"))):
            sizes, tokens = arguments[name].tolist(), len(arguments[given])
            if len(sizes) != counts[axis] or min(sizes, default=0) < 0 or sum(sizes) != tokens:
                text = (
                    f"{name} of KV head {self.head} has {len(sizes)} blocks of {sum(sizes)} tokens in all, where "
                    f"block_mask_map has {counts[axis]} and {given} has {tokens} tokens"
                )
                return (Breach((name,), text, _DOCUMENTED),)
        return ()


def _heads(view: View, first: int, count: int) -> View:
    return replace(view, shape=(count, *view.shape[1:]), offset=view.offset + first * view.stride[0])


def _tokens_first(view: View) -> View:
    (heads, tokens, *rest), (by_head, by_token, *others) = view.shape, view.stride
    return replace(view, shape=(tokens, heads, *rest), stride=(by_token, by_head, *others))
