"""Stands for FlashInfer's MLA wrapper: it takes the installed one's arguments, and computes on the CPU."""

from itertools import pairwise
from typing import Any

import torch
from bound_call import bind
from flashinfer.mla import MLAPlanMetadata
from plain_attention import to_base2

from attnfuzz.reference.attention import attend
from attnfuzz.reference.problem import Problem

__all__ = ["BatchMLAPagedAttentionWrapper", "MLAPlanMetadata"]

_NAME = "BatchMLAPagedAttentionWrapper"
_METADATA = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")


class BatchMLAPagedAttentionWrapper:
    """Plans are kept; in graph mode their metadata goes to the caller's buffers, and is read from there."""

    def __init__(self, **arguments: Any) -> None:
        self._made = bind("flashinfer.mla", _NAME, arguments)

    def plan(self, **arguments: Any) -> None:
        """Take canonical metadata, with the checks of the installed planner."""
        self._planned = bind("flashinfer.mla", f"{_NAME}.plan", arguments)
        self._metadata = {name: getattr(self._planned["metadata"], name) for name in _METADATA}
        kv_lens, page = self._metadata["kv_len_arr"].tolist(), self._planned["page_size"]
        assert kv_lens, "FA MLA native planning requires a nonempty batch."
        pages = [last - first for first, last in pairwise(self._metadata["kv_indptr"].tolist())]
        assert [-(-kv_len // page) for kv_len in kv_lens] == pages
        if self._made.get("use_cuda_graph"):
            for name, source in self._metadata.items():
                target = self._made[name]
                assert len(target) >= len(source) if name == "kv_indices" else target.shape == source.shape
                target[: len(source)].copy_(source)
                self._metadata[name] = target

    def run(self, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Causal attention in fp64."""
        taken = bind("flashinfer.mla", f"{_NAME}.run", arguments)
        query = self._whole(taken, "query", "q_nope", "q_pe")
        pool = self._whole(taken, "kv_cache", "ckv_cache", "kpe_cache")
        rank = self._planned["head_dim_ckv"]
        out = taken.get("out", query.new_empty((*query.shape[:2], rank)))
        lse = taken.get("lse", torch.empty(query.shape[:2]))
        assert query.shape[-1] == pool.shape[-1] == rank + self._planned["head_dim_kpe"]
        assert (pool.ndim, pool.shape[1]) == (3, self._planned["page_size"])
        rows, kv_lens = self._metadata["qo_indptr"].tolist(), self._metadata["kv_len_arr"].tolist()
        assert rows[-1] == len(query) == len(out) == len(lse)
        pages = self._metadata["kv_indices"][: self._metadata["kv_indptr"][-1]].long()
        by_page = pool[pages]
        ends = pairwise(self._metadata["kv_indptr"].tolist())
        held = [by_page[first:last].flatten(0, 1)[:n] for (first, last), n in zip(ends, kv_lens, strict=True)]
        key = torch.cat([pool[:0].flatten(0, 1), *held]).unsqueeze(1)
        q_lens = tuple(last - first for first, last in pairwise(rows))
        answer = attend(
            Problem(query, key, key[..., :rank], q_lens, tuple(kv_lens), self._planned["sm_scale"], causal=True)
        )
        out.copy_(answer.out)
        lse.copy_(to_base2(answer.lse))
        return out, lse

    def _whole(self, taken: dict[str, Any], name: str, *parts: str) -> torch.Tensor:
        """A tensor, or its joined parts, if the plan has said so: a plan of metadata says "packed" by default."""
        value: Any = taken[name] if name in taken else tuple(taken[part] for part in parts)
        split = isinstance(value, tuple)
        if self._planned.get(f"{name}_layout", "packed") != ("split" if split else "packed"):
            raise ValueError(f"{name} is not as planned")
        whole: torch.Tensor = torch.cat(value, dim=-1) if split else value
        return whole
