"""A batch as a model forwards it."""

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any

import torch
from sglang.srt.layers.dp_attention import get_attention_tp_size


class ForwardMode(IntEnum):
    """What a batch does."""

    EXTEND = auto()
    DECODE = auto()
    TARGET_VERIFY = auto()
    DRAFT_EXTEND = auto()
    DRAFT_EXTEND_V2 = auto()

    def is_decode(self) -> bool:
        """One token of each request."""
        return self is ForwardMode.DECODE

    def is_target_verify(self) -> bool:
        """All drafts of each request."""
        return self is ForwardMode.TARGET_VERIFY


@dataclass
class ForwardBatch:
    """The tensors of a batch."""

    forward_mode: ForwardMode
    batch_size: int
    input_ids: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor
    seq_lens_sum: int
    seq_lens_cpu: torch.Tensor
    positions: torch.Tensor
    lora_ids: list[None] | None = None
    extend_num_tokens: int | None = None
    extend_seq_lens: torch.Tensor | None = None
    extend_prefix_lens: torch.Tensor | None = None
    extend_start_loc: torch.Tensor | None = None
    extend_seq_lens_cpu: list[int] | None = None
    extend_prefix_lens_cpu: list[int] | None = None
    extend_logprob_start_lens_cpu: list[int] | None = None
    req_to_token_pool: Any = None
    token_to_kv_pool: Any = None
    attn_backend: Any = None
    spec_algorithm: Any = None
    spec_info: Any = None
    is_extend_in_batch: bool = False
    global_num_tokens_cpu: list[int] | None = None
    global_num_tokens_gpu: torch.Tensor | None = None
    global_num_tokens_for_logprob_cpu: list[int] | None = None
    global_num_tokens_for_logprob_gpu: torch.Tensor | None = None

    def prepare_mlp_sync_batch(self, model_runner: Any) -> None:
        """Pad it to the largest of the data-parallel ranks, or its tokens alone if one of them extends."""
        del model_runner
        assert self.global_num_tokens_cpu is not None
        own = self.input_ids.shape[0]
        shared = get_attention_tp_size()
        ranks = [-(-tokens // shared) * shared for tokens in self.global_num_tokens_cpu]
        rows = ranks[0] if self.is_extend_in_batch else max(ranks)
        stride = self.spec_info.num_tokens_per_req if self.spec_info else 1
        for name in ("input_ids", "positions", "out_cache_loc"):
            setattr(self, name, _padded(getattr(self, name), rows, 0))
        if self.is_extend_in_batch or rows == own:
            return
        self.batch_size = rows // stride
        self.req_pool_indices = _padded(self.req_pool_indices, self.batch_size, 0)
        self.seq_lens = _padded(self.seq_lens, self.batch_size, 1)
        self.seq_lens_cpu = _padded(self.seq_lens_cpu, self.batch_size, 1)
        if self.extend_seq_lens is not None:
            self.extend_seq_lens = _padded(self.extend_seq_lens, self.batch_size, 0)


def _padded(tensor: torch.Tensor, size: int, value: int) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (0, size - tensor.shape[0]), value=value)
