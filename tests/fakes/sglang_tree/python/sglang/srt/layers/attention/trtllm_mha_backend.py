"""A backend for keys and values of heads: it plans, and calls FlashInfer."""

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

flashinfer: Any = None
global_zero_init_workspace_buffer: torch.Tensor | None = None

_WORKSPACE_BYTES = 16 << 20


@dataclass
class Metadata:
    """What a batch was planned as."""

    seq_lens: torch.Tensor
    cu_q: torch.Tensor
    cu_k: torch.Tensor
    page_table: torch.Tensor
    max_q: int


class TRTLLMHAAttnBackend:
    """Decodes and verifies on the decode kernel, all else on the context kernel."""

    def __init__(self, model_runner: Any) -> None:
        global global_zero_init_workspace_buffer  # noqa: PLW0603 - as SGLang has it
        if global_zero_init_workspace_buffer is None:
            global_zero_init_workspace_buffer = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8)
        self.workspace = global_zero_init_workspace_buffer
        self.page_size = model_runner.page_size
        self.max_context_len = model_runner.model_config.context_len
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.planned: Metadata | None = None
        self.static: Metadata | None = None
        self.captured: dict[tuple[Any, int], Metadata] = {}

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Plan a batch."""
        seq_lens, drafts = batch.seq_lens, 0
        if batch.forward_mode.is_target_verify():
            drafts = batch.spec_info.draft_token_num
            seq_lens = seq_lens + drafts
        lens = seq_lens.to(torch.int32)
        longest = int(batch.seq_lens_cpu.max()) + drafts if batch.batch_size else 0
        if batch.extend_seq_lens is None:
            max_q = drafts or 1
            cu_q = torch.arange(0, batch.batch_size * max_q + 1, max_q, dtype=torch.int32)
        else:
            assert batch.extend_seq_lens_cpu is not None
            max_q = max(batch.extend_seq_lens_cpu, default=0)
            cu_q = _offsets(batch.extend_seq_lens)
        columns = self.req_to_token[batch.req_pool_indices, :longest]
        self.planned = Metadata(lens, cu_q, _offsets(lens), columns[:, :: self.page_size] // self.page_size, max_q)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Make what graphs of up to so many requests read."""
        columns = -(-self.max_context_len // self.page_size)
        lens, cu_q, cu_k = (torch.zeros(max_bs + extra, dtype=torch.int32) for extra in (0, 1, 1))
        pages = torch.zeros((max_bs, columns), dtype=torch.int32)
        self.static = Metadata(lens, cu_q, cu_k, pages, max_num_tokens // max_bs)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """The length of a padded request."""
        return 1

    def init_forward_metadata_capture_cuda_graph(
        self,
        bs: int,
        num_tokens: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None,
        forward_mode: ForwardMode,
        spec_info: Any,
    ) -> None:
        """Plan a graph."""
        assert self.static is not None
        static = self.static
        self.planned = self.captured[forward_mode, bs] = Metadata(
            static.seq_lens[:bs],
            static.cu_q[: bs + 1],
            static.cu_k[: bs + 1],
            static.page_table[:bs],
            num_tokens // bs,
        )
        self._refresh(bs, req_pool_indices, seq_lens, forward_mode, None)

    def init_forward_metadata_replay_cuda_graph(
        self,
        bs: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_sum: int,
        encoder_lens: torch.Tensor | None,
        forward_mode: ForwardMode,
        spec_info: Any,
        seq_lens_cpu: torch.Tensor | None = None,
    ) -> None:
        """Plan a batch for a graph that was captured."""
        accepted = None if forward_mode.is_decode() or forward_mode.is_target_verify() else spec_info.accept_length
        self._refresh(bs, req_pool_indices, seq_lens, forward_mode, accepted)

    def _refresh(
        self, bs: int, rows: torch.Tensor, seq_lens: torch.Tensor, mode: ForwardMode, accepted: torch.Tensor | None
    ) -> None:
        plan = self.captured[mode, bs]
        self.planned = plan
        plan.seq_lens.copy_(seq_lens[:bs] + (plan.max_q if mode.is_target_verify() else 0))
        plan.cu_k.copy_(_offsets(plan.seq_lens))
        tokens = torch.full((bs,), plan.max_q, dtype=torch.int32) if accepted is None else accepted[:bs]
        plan.cu_q.copy_(_offsets(tokens))
        columns = torch.arange(plan.page_table.shape[1]) * self.page_size
        plan.page_table.copy_(self.req_to_token[rows[:bs]][:, columns] // self.page_size)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,  # noqa: FBT002 - as SGLang has it
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the new tokens, then attend."""
        pool, plan = forward_batch.token_to_kv_pool, self.planned
        assert plan is not None
        if save_kv_cache:
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v, layer.k_scale_float, layer.v_scale_float)
        pages = tuple(
            part.view(-1, self.page_size, *part.shape[1:]).permute(0, 2, 1, 3)
            for part in pool.get_kv_buffer(layer.layer_id)
        )
        common: dict[str, Any] = {
            "query": q.view(-1, layer.tp_q_head_num, layer.head_dim),
            "kv_cache": pages,
            "workspace_buffer": self.workspace,
            "block_tables": plan.page_table,
            "seq_lens": plan.seq_lens,
            "bmm1_scale": layer.scaling * (layer.k_scale_float or 1.0),
            "bmm2_scale": layer.v_scale_float or 1.0,
            "window_left": layer.sliding_window_size,
            "sinks": sinks,
            "out_dtype": q.dtype,
        }
        if forward_batch.extend_seq_lens is None:
            # The kernel takes its batch from the queries, which may have been padded since the batch was planned.
            rows = plan.seq_lens.shape[0] * plan.max_q
            query = common.pop("query")
            out = flashinfer.decode.trtllm_batch_decode_with_kv_cache(
                query[:rows], **common, max_seq_len=self.max_context_len, q_len_per_req=plan.max_q
            )
            out = torch.nn.functional.pad(out, (0, 0, 0, 0, 0, query.shape[0] - rows))
        else:
            out = flashinfer.prefill.trtllm_batch_context_with_kv_cache(
                **common,
                max_q_len=plan.max_q,
                max_kv_len=self.max_context_len,
                batch_size=plan.cu_q.shape[0] - 1,
                cum_seq_lens_q=plan.cu_q,
                cum_seq_lens_kv=plan.cu_k,
            )
        return torch.as_tensor(out).view(-1, layer.tp_q_head_num * layer.v_head_dim)


def _offsets(lens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
