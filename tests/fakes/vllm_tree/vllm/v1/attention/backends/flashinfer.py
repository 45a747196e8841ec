"""A backend that has the names of vLLM's and is right: decodes in front, prefills behind."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from flashinfer.decode import trtllm_batch_decode_with_kv_cache
from flashinfer.prefill import trtllm_batch_context_with_kv_cache
from vllm.config.vllm import get_current_vllm_config
from vllm.platforms import current_platform

trtllm_workspace_buffer = None


def _get_trtllm_workspace_buffer() -> torch.Tensor:
    global trtllm_workspace_buffer  # noqa: PLW0603 - as in vLLM
    if trtllm_workspace_buffer is None:
        trtllm_workspace_buffer = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    return trtllm_workspace_buffer


class FlashInferBackend:
    """The backend."""

    @staticmethod
    def get_builder_cls() -> type:
        """The planner."""
        return FlashInferMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(blocks: int, block_size: int, heads: int, dim: int) -> tuple[int, ...]:
        """The shape of the pool."""
        return blocks, heads, block_size, 2 * dim


@dataclass
class Metadata:
    """A plan: `decodes` requests in front, with `decode_tokens` tokens, and the others behind."""

    common: Any
    decodes: int
    decode_tokens: int
    cum_seq_lens_kv: torch.Tensor


class FlashInferMetadataBuilder:
    """The planner."""

    def __init__(self, spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        assert current_platform.is_device_capability_family(100)
        assert get_current_vllm_config() is vllm_config
        speculation = vllm_config.speculative_config
        self.page_size = spec.block_size
        self.reorder_batch_threshold = 1 + (speculation.num_speculative_tokens if speculation else 0)
        self.cum_seq_lens_kv = torch.zeros(
            vllm_config.scheduler_config.max_num_seqs + 1, dtype=torch.int32, device=device
        )

    def build(self, common_prefix_len: int, common: Any) -> Metadata:
        """Plan a batch."""
        begins = common.query_start_loc_cpu.tolist()
        lens = [end - begin for begin, end in pairwise(begins)]
        same = [length in (lens[0], 0) and length <= self.reorder_batch_threshold for length in lens]
        decodes = same.index(False) if False in same else len(lens)
        pages = (common.seq_lens[decodes:] + self.page_size - 1) // self.page_size
        ends = self.cum_seq_lens_kv[: len(lens) - decodes + 1]
        ends[1:] = pages.cumsum(0)
        return Metadata(common, decodes, common.num_actual_tokens if decodes == len(lens) else begins[decodes], ends)


class FlashInferImpl:
    """The layer."""

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int, **options: Any) -> None:
        self.scale, self.head_size, self.sinks = scale, head_size, options["sinks"]
        self.window_left = -1 if options["sliding_window"] is None else options["sliding_window"] - 1

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Do nothing."""

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Write new tokens."""
        k_cache, v_cache = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        torch.ops._C_cache_ops.reshape_and_cache_flash(
            key, value, k_cache, v_cache, slot_mapping, "auto", layer._k_scale, layer._v_scale
        )

    def forward(
        self,
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        kv_cache: torch.Tensor,
        plan: Metadata | None,
        output: torch.Tensor,
    ) -> torch.Tensor:
        """Attend; a dummy batch has no plan."""
        if plan is None:
            return output.fill_(0)
        common, cut = plan.common, plan.decode_tokens
        shared = {
            "kv_cache": kv_cache.split(self.head_size, dim=-1),
            "workspace_buffer": _get_trtllm_workspace_buffer(),
            "bmm1_scale": self.scale,
            "bmm2_scale": 1.0,
            "window_left": self.window_left,
            "sinks": self.sinks,
        }
        if plan.decodes:
            trtllm_batch_decode_with_kv_cache(
                query=query[:cut].contiguous(),
                block_tables=common.block_table_tensor[: plan.decodes],
                seq_lens=common.seq_lens[: plan.decodes],
                max_seq_len=common.max_seq_len,
                out=output[:cut],
                q_len_per_req=cut // plan.decodes,
                **shared,
            )
        if plan.decodes < common.num_reqs:
            trtllm_batch_context_with_kv_cache(
                query=query[cut : common.num_actual_tokens].contiguous(),
                block_tables=common.block_table_tensor[plan.decodes :],
                seq_lens=common.seq_lens[plan.decodes :],
                max_q_len=common.max_query_len,
                max_kv_len=common.max_seq_len,
                batch_size=common.num_reqs - plan.decodes,
                cum_seq_lens_q=common.query_start_loc[plan.decodes :] - common.query_start_loc[plan.decodes],
                cum_seq_lens_kv=plan.cum_seq_lens_kv,
                out=output[cut : common.num_actual_tokens],
                **shared,
            )
        return output
