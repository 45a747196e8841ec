"""The static tensors of a graph runner, which its graphs read; a replay copies its batch into them.

A file is that of SGLang 0.5.9 unless another version is named.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Bench, Fill
from attnfuzz.kernels.sglang.orders import GraphPlanner
from attnfuzz.reference.case import Mode

_ACCEPTED = {
    **dict.fromkeys(("accept_length", "num_accepted_tokens", "num_accept_tokens"), "accepted_tokens"),
    **dict.fromkeys(("num_accepted_drafts", "num_correct_drafts"), "accepted_drafts"),
}
"""The accept lengths of a draft's spec_info, under their names in different versions, and their buffers."""


@dataclass(frozen=True)
class GraphBuffers:
    """Tensors for the largest batch of a runner, which each of its graphs slices.

    They are those of model_executor/input_buffers.py:57 and speculative/eagle_draft_extend_cuda_graph_runner.py:90.
    `stride` is the number of tokens of a request, `fill` the length of a padded one. Up to 0.5.12, padded rows keep the
    request of an earlier batch; later they are row 0 (0.5.14: cuda_graph_buffer_registry.py:577).
    """

    stride: int
    fill: int
    stale_rows: bool
    verify: bool
    draft: bool
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor
    out_cache_loc: torch.Tensor
    positions: torch.Tensor
    input_ids: torch.Tensor
    accepted_tokens: torch.Tensor
    accepted_drafts: torch.Tensor
    extend_seq_lens: torch.Tensor

    @classmethod
    def allocate(
        cls,
        bench: Bench,
        planner: GraphPlanner,
        mode: Mode,
        *,
        batch: int,
        stride: int,
        fill: int,
        lengths: torch.dtype = torch.int64,
    ) -> "GraphBuffers":
        """Allocate buffers for up to `batch` requests; `lengths` is the dtype of those on the device."""

        def zeros(name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
            return bench.memory.tensor(f"graph_{name}", (size,), dtype, fill=Fill.ZEROS)

        stale, tokens = planner is GraphPlanner.ARGUMENTS, batch * stride
        return cls(
            stride=stride,
            fill=fill,
            stale_rows=stale,
            verify=mode is Mode.TARGET_VERIFY,
            draft=mode in (Mode.DRAFT_EXTEND, Mode.DRAFT_EXTEND_V2),
            req_pool_indices=zeros("req_pool_indices", batch, torch.int64),
            seq_lens=zeros("seq_lens", batch, lengths).fill_(fill),
            seq_lens_cpu=torch.full((batch,), fill, dtype=torch.int32),
            out_cache_loc=zeros("out_cache_loc", tokens, torch.int64),
            positions=zeros("positions", tokens, torch.int64),
            input_ids=zeros("input_ids", tokens, torch.int64),
            accepted_tokens=zeros("accepted_tokens", batch, torch.int32).fill_(stride),
            accepted_drafts=zeros("accepted_drafts", batch, torch.int32).fill_(stride),
            extend_seq_lens=zeros("extend_seq_lens", batch, torch.int32).fill_(stride),
        )

    @contextmanager
    def as_before_replays(self) -> Iterator[None]:
        """Give all requests the length of padded ones: a server captures its graphs before it replays any."""
        lengths = (self.seq_lens, self.seq_lens_cpu)
        kept = [each.clone() for each in lengths]
        for each in lengths:
            each.fill_(self.fill)
        yield
        for each, before in zip(lengths, kept, strict=True):
            each.copy_(before)

    def describe(self, batch: Any, size: int) -> None:
        """Point a ForwardBatch of `size` requests at these buffers (cuda_graph_runner.py:561)."""
        tokens = size * self.stride
        batch.batch_size = size
        batch.input_ids, batch.positions = self.input_ids[:tokens], self.positions[:tokens]
        batch.out_cache_loc = self.out_cache_loc[:tokens]
        batch.req_pool_indices, batch.seq_lens = self.req_pool_indices[:size], self.seq_lens[:size]
        batch.seq_lens_cpu = self.seq_lens_cpu[:size]
        batch.seq_lens_sum = size * self.fill
        if self.verify:
            seen = (size * self.fill + tokens) * self.stride
            batch.spec_info.custom_mask = torch.ones(seen, dtype=torch.bool, device=self.seq_lens.device)
        if self.draft:
            batch.extend_seq_lens, batch.extend_seq_lens_cpu = self.extend_seq_lens[:size], [self.stride] * size
            batch.extend_num_tokens = tokens
            self.describe_accepted(batch.spec_info, size)

    def describe_accepted(self, spec_info: Any, size: int) -> None:
        """Point the accept lengths of a spec_info at the first `size` elements of their buffers."""
        for name, buffer in _ACCEPTED.items():
            if name in vars(spec_info):
                setattr(spec_info, name, getattr(self, buffer)[:size])

    def fill_from(self, batch: Any, size: int) -> None:
        """Copy a batch into the buffers of a graph of `size` requests.

        model_executor/input_buffers.py:158 (0.5.14: cuda_graph_buffer_registry.py, fill_from), and
        speculative/eagle_draft_extend_cuda_graph_runner.py:398.
        """
        raw, tokens = batch.batch_size, batch.input_ids.shape[0]
        if size != raw or size * self.stride != tokens:
            self.seq_lens.fill_(self.fill)
            self.seq_lens_cpu.fill_(self.fill)
            self.out_cache_loc.zero_()
            self.accepted_tokens.fill_(self.stride)
            self.accepted_drafts.fill_(self.stride)
            self.extend_seq_lens.fill_(self.stride)
            if not self.stale_rows:
                self.req_pool_indices.zero_()
            if self.draft or not self.stale_rows:
                self.positions.zero_()
        self.input_ids[:tokens].copy_(batch.input_ids)
        self.positions[:tokens].copy_(batch.positions)
        self.out_cache_loc[:tokens].copy_(batch.out_cache_loc)
        self.req_pool_indices[:raw].copy_(batch.req_pool_indices)
        self.seq_lens[:raw].copy_(batch.seq_lens)
        self.seq_lens_cpu[:raw].copy_(batch.seq_lens_cpu)
        if self.draft:
            self._fill_draft(batch, raw, size)

    def _fill_draft(self, batch: Any, raw: int, size: int) -> None:
        self.extend_seq_lens[:raw].copy_(batch.extend_seq_lens)
        info = batch.spec_info
        for name, buffer in _ACCEPTED.items():
            if vars(info).get(name) is not None:
                getattr(self, buffer)[:raw].copy_(getattr(info, name))
        info.extend_seq_lens_cpu = [*batch.extend_seq_lens_cpu, *[self.stride] * (size - raw)]
        info.extend_seq_lens_tensor = self.extend_seq_lens[:size]
        if size != raw:
            info.positions = self.positions[: batch.input_ids.shape[0]]
            self.describe_accepted(info, size)
