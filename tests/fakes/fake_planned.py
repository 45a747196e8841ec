"""Stands for FlashInfer's classes that own an integer workspace, on the CPU, bound to the installed signatures.

Each answers with the reference's attention to what its own metadata says: pages through the lists, lengths through the
indptr, masks through their blocks. What the real ones reject is rejected.
"""

from itertools import pairwise
from math import log
from types import SimpleNamespace
from typing import Any

import torch
from bound_call import bind, bind_positions
from plain_attention import attend_one, to_base2

from attnfuzz.reference.problem import Answer

_POD, _CASCADE, _SPARSE, _ATTENTION = (f"flashinfer.{name}" for name in ("pod", "cascade", "sparse", "attention"))


def _pages(cache: Any, layout: str, ids: list[int], kv_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [tokens, heads, dim] on pages."""
    chosen_ids = torch.tensor(ids, dtype=torch.int64)
    pools = cache.unbind(dim=1) if isinstance(cache, torch.Tensor) else cache
    key, value = (pool.transpose(1, 2) if layout == "HND" else pool for pool in pools)
    chosen = (
        pool.view(torch.uint8)[chosen_ids].view(pool.dtype) if pool.itemsize == 1 else pool[chosen_ids]
        for pool in (key, value)
    )
    key, value = (pool.flatten(0, 1)[:kv_len] for pool in chosen)
    return key, value


def _paged(
    query: torch.Tensor, cache: Any, layout: str, lists: dict[str, torch.Tensor], plan: dict[str, Any], *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and lse in base 2 of requests on pages."""
    page = plan["page_size"]
    indptr, ids, last = (lists[name].tolist() for name in ("kv_indptr", "kv_indices", "last_page_len"))
    first = lists["qo_indptr"].tolist()
    assert first[-1] == len(query)
    assert len(first) == len(indptr) == len(last) + 1
    outs, lses = [query[:0].float()], [torch.empty(0, query.shape[1])]
    for index, (begin, end) in enumerate(pairwise(first)):
        pages = ids[indptr[index] : indptr[index + 1]]
        kv_len = max(len(pages) - 1, 0) * page + last[index]
        assert kv_len <= len(pages) * page
        answer = _one(query[begin:end], *_pages(cache, layout, pages, kv_len), plan, causal=causal)
        outs.append(answer.out.float())
        lses.append(to_base2(answer.lse).float())
    return torch.cat(outs), torch.cat(lses)


def _one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: dict[str, Any], *, causal: bool) -> Answer:
    scale, cap = float(plan.get("sm_scale", query.shape[2] ** -0.5)), max(plan.get("logits_soft_cap") or 0.0, 0.0)
    window = plan.get("window_left", -1)
    return attend_one(query, key, value, scale, causal=causal, soft_cap=cap, window_left=window)


def _merged(states: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """The output of states (out, lse in base 2); 0 without keys."""
    lse = torch.stack([s for _, s in states])
    weights = torch.softmax(lse.double() * log(2), dim=0).nan_to_num(0.0).unsqueeze(3)
    return (weights * torch.stack([out.double() for out, _ in states])).sum(dim=0)


class _Planned:
    module: str
    planning = "plan"
    running = "run"

    def __init__(self, **arguments: Any) -> None:
        self.made = bind(self.module, type(self).__name__, arguments)
        self._int_workspace_buffer = torch.zeros(64, dtype=torch.uint8)

    def reset_workspace_buffer(self, floats: torch.Tensor, ints: Any) -> None:
        bind_positions(self.module, f"{type(self).__name__}.reset_workspace_buffer", floats, ints)
        self._int_workspace_buffer = ints

    def _planned(self, arguments: dict[str, Any]) -> None:
        self.settings = bind(self.module, f"{type(self).__name__}.{self.planning}", arguments)

    def _run(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return bind(self.module, f"{type(self).__name__}.{self.running}", arguments)

    def plan(self, **arguments: Any) -> None:
        self._planned(arguments)


class BatchAttention(_Planned):
    """Paged attention of prefills and decodes."""

    module = _ATTENTION

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.float_workspace_buffer, self.int_workspace_buffer = torch.empty(64), torch.empty(64)

    def run(self, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        taken, plan = self._run(arguments), self.settings
        assert plan["causal"]
        assert max(taken.get("logits_soft_cap", 0.0), 0.0) == max(plan.get("logits_soft_cap", 0.0), 0.0)
        page, kv_lens = plan["page_size"], plan["kv_len_arr"]
        counts = plan["kv_indptr"].diff()
        assert torch.equal(counts, (kv_lens + page - 1) // page)
        lists = plan | {"last_page_len": kv_lens - (counts - 1).clamp(min=0) * page}
        scale = plan.get("sm_scale", taken["q"].shape[2] ** -0.5) * taken.get("k_scale", 1.0)
        out, lse = _paged(
            taken["q"], taken["kv_cache"], self.made["kv_layout"], lists, plan | {"sm_scale": scale}, causal=True
        )
        made = taken.get("out", torch.empty_like(taken["q"]))
        made_lse = taken.get("lse", torch.empty_like(lse))
        made.copy_(out * taken.get("v_scale", 1.0))
        made_lse.copy_(lse)
        return made, made_lse


class PODWithPagedKVCacheWrapper(_Planned):
    """A prefill of packed keys, and decodes of pages."""

    module = _POD

    def run(self, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        taken, plan = self._run(arguments), self.settings
        query, key, value = (taken[name] for name in ("q_p", "k_p", "v_p"))
        if taken["kv_layout_p"] == "HND":
            key, value = key.transpose(0, 1), value.transpose(0, 1)
        assert 0 < len(query) <= len(key)
        assert len(plan["last_page_len"])
        prefill = {name: taken[f"{name}_p"] for name in ("sm_scale", "window_left") if f"{name}_p" in taken}
        out = _one(query, key, value, prefill, causal=taken["causal_p"]).out
        decodes = torch.arange(len(plan["last_page_len"]) + 1)
        lists = {
            "qo_indptr": decodes,
            "kv_indptr": plan["indptr"],
            "kv_indices": plan["indices"],
            "last_page_len": plan["last_page_len"],
        }
        out_d, _ = _paged(taken["q_d"], taken["paged_kv_cache_d"], self.made["kv_layout"], lists, plan, causal=False)
        return out, out_d


class BatchPODWithPagedKVCacheWrapper(_Planned):
    """Prefills and decodes of pages. The order of what it returns is that of the code, not of the docstring."""

    module = _POD

    def run(self, **arguments: Any) -> tuple[tuple[torch.Tensor, ...], ...]:
        taken, plan = self._run(arguments), self.settings
        assert taken["return_lse"]
        states = []
        for side, causal in (("p", taken["causal_p"]), ("d", False)):
            lists = {name: plan[f"{name}_{side}"] for name in ("qo_indptr", "kv_indptr", "kv_indices", "last_page_len")}
            assert len(lists["last_page_len"])
            cache = taken[f"paged_kv_cache_{side}"]
            states.append(_paged(taken[f"q_{side}"], cache, self.made["kv_layout"], lists, plan, causal=causal))
        (out_p, lse_p), (out_d, lse_d) = states
        return (out_p, out_d), (lse_p, lse_d)


class MultiLevelCascadeAttentionWrapper(_Planned):
    """Paged attention on levels, of which the last is causal. A window is that of the level's own keys."""

    module = _CASCADE

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._batch_prefill_wrappers = [
            SimpleNamespace(_int_workspace_buffer=self.__dict__.pop("_int_workspace_buffer", torch.zeros(64)))
            for _ in range(self.made["num_levels"])
        ]

    def reset_workspace_buffer(self, floats: torch.Tensor, ints: Any) -> None:
        super().reset_workspace_buffer(floats, ints)
        del self._int_workspace_buffer
        for level, workspace in zip(self._batch_prefill_wrappers, ints, strict=True):
            level._int_workspace_buffer = workspace

    def plan(self, **arguments: Any) -> None:
        self._planned(arguments)
        self.levels = []
        for level in range(self.made["num_levels"]):
            planned = {
                "qo_indptr": self.settings["qo_indptr_arr"][level],
                "kv_indptr": self.settings["paged_kv_indptr_arr"][level],
                "kv_indices": self.settings["paged_kv_indices_arr"][level],
                "last_page_len": self.settings["paged_kv_last_page_len"][level],
            }
            if self.made.get("use_cuda_graph"):
                names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
                for ours, theirs in zip(planned, names, strict=True):
                    buffer = self.made[f"{theirs}_buf_arr"][level]
                    assert ours == "kv_indices" or len(buffer) == len(planned[ours])
                    buffer[: len(planned[ours])].copy_(planned[ours])
                    planned[ours] = buffer
            self.levels.append(planned)

    def run(self, **arguments: Any) -> torch.Tensor:
        taken = self._run(arguments)
        last = len(self.levels) - 1
        _refuse_different_strides(taken["paged_kv_cache"])
        return _merged(
            [
                _paged(
                    taken["q"],
                    taken["paged_kv_cache"],
                    self.made["kv_layout"],
                    lists,
                    self.settings,
                    causal=self.settings["causal"] and level == last,
                )
                for level, lists in enumerate(self.levels)
            ]
        )


class _Prefixed(_Planned):
    module = _CASCADE
    planning, running = "begin_forward", "forward"

    def begin_forward(self, **arguments: Any) -> None:
        self._planned(arguments)

    def _answer(self, taken: dict[str, Any], lists: dict[str, torch.Tensor], *, causal: bool) -> torch.Tensor:
        query, plan = taken["q"], self.settings | {"sm_scale": taken.get("sm_scale") or taken["q"].shape[-1] ** -0.5}
        assert query.dtype == torch.float16
        assert self.settings.get("data_type") in (None, torch.float16, "float16")
        _refuse_different_strides(taken["unique_kv_cache"])
        assert len(taken["k_shared"])
        shared = _one(query, taken["k_shared"], taken["v_shared"], plan, causal=False)
        rest = _paged(query, taken["unique_kv_cache"], self.made["kv_layout"], lists, plan, causal=causal)
        return _merged([(shared.out, to_base2(shared.lse)), rest])


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper(_Prefixed):
    """A prefix of all, and decodes of pages."""

    def forward(self, **arguments: Any) -> torch.Tensor:
        plan = self.settings
        last = plan["unique_kv_last_page_len"]
        lists = {
            "qo_indptr": torch.arange(len(last) + 1),
            "kv_indptr": plan["unique_kv_indptr"],
            "kv_indices": plan["unique_kv_indices"],
            "last_page_len": last,
        }
        if plan["unique_kv_indices"].dtype != torch.int32:
            raise ValueError("page ids must be int32")
        return self._answer(self._run(arguments), lists, causal=False)


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper(_Prefixed):
    """A prefix of all, and prefills of pages."""

    def forward(self, **arguments: Any) -> torch.Tensor:
        plan, taken = self.settings, self._run(arguments)
        lists = {
            "qo_indptr": plan["qo_indptr"],
            "kv_indptr": plan["paged_kv_indptr"],
            "kv_indices": plan["paged_kv_indices"],
            "last_page_len": plan["paged_kv_last_page_len"],
        }
        return self._answer(taken, lists, causal=taken["causal"])


def _refuse_different_strides(cache: Any) -> None:
    if not isinstance(cache, torch.Tensor) and cache[0].stride() != cache[1].stride():
        raise ValueError("K and V must have equal strides")


def _masked(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, plan: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out [queries, heads, dim] and lse in base 2 under a mask [kv heads, queries, keys], in fp64."""
    group = query.shape[1] // key.shape[1]
    key, value = (tokens.double().repeat_interleave(group, dim=1) for tokens in (key, value))
    logits = torch.einsum("qhd,khd->hqk", query.double(), key) * plan.get("sm_scale", query.shape[2] ** -0.5)
    if (plan.get("logits_soft_cap") or 0.0) > 0:
        logits = plan["logits_soft_cap"] * torch.tanh(logits / plan["logits_soft_cap"])
    mask = mask.repeat_interleave(group, dim=0)
    logits = logits.masked_fill(~mask, -torch.inf)
    lse = logits.logsumexp(dim=2)
    weights = (logits - lse.unsqueeze(2)).exp().nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, value), lse.t() / log(2)


class BlockSparseAttentionWrapper(_Planned):
    """A matrix of blocks of one size."""

    module = _SPARSE

    def run(self, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        taken, plan = self._run(arguments), self.settings
        rows, columns, side = plan["M"], plan["N"], plan["R"]
        assert side == plan["C"]
        assert columns % side == 0
        assert plan["o_data_type"] == taken["q"].dtype
        assert (len(taken["q"]), len(taken["k"]), len(taken["v"])) == (rows, columns, columns)
        indptr, indices, blocks = plan["indptr"].tolist(), plan["indices"].tolist(), plan.get("mask")
        assert (blocks is None) == (side == 1)
        dense = torch.zeros((len(indptr) - 1) * side, columns, dtype=torch.bool)
        for row, (begin, end) in enumerate(pairwise(indptr)):
            for at in range(begin, end):
                block = torch.ones(side, side, dtype=torch.bool) if blocks is None else blocks[at]
                column = indices[at] * side
                dense[row * side : (row + 1) * side, column : column + side] = block
        mask = dense[:rows].expand(plan["num_kv_heads"], -1, -1)
        out, lse = _masked(taken["q"], taken["k"], taken["v"], mask, plan)
        made = taken.get("out", torch.empty_like(taken["q"]))
        made_lse = taken.get("lse", torch.empty_like(lse, dtype=torch.float32))
        made.copy_(out)
        made_lse.copy_(lse)
        return made, made_lse


class VariableBlockSparseAttentionWrapper(_Planned):
    """A matrix of blocks of any size for each head."""

    module = _SPARSE

    def run(self, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        taken, plan = self._run(arguments), self.settings
        assert taken["return_lse"]
        query, key, value = (taken[name].transpose(0, 1) for name in ("q", "k", "v"))
        of_heads = zip(plan["block_mask_map"], plan["block_row_sz"], plan["block_col_sz"], strict=True)
        mask = torch.stack(
            [each.repeat_interleave(rows, dim=0).repeat_interleave(cols, dim=1) for each, rows, cols in of_heads]
        )
        assert mask.shape[1:] == (len(query), len(key))
        assert (plan["block_col_sz"] > 0).all()
        assert mask.any()
        out, lse = _masked(query, key, value, mask, plan)
        return out.transpose(0, 1), lse.transpose(0, 1)
