"""A draft model's decodes: planned together by the release's multi-step backend, then run one after another.

A file and line below sglang/srt/ is that of SGLang 0.5.23.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.planning.queries import draw_queries
from attnfuzz.kernels.sglang.batch import HIDDEN_SIZE, batch_of, count_tokens_of_ranks, draft_input, new_keys, pad
from attnfuzz.kernels.sglang.layer import Inputs
from attnfuzz.kernels.sglang.padding import one_decode
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.reference.case import Step


class DraftDecodes:
    """The draft model of a server, whose layer is the target's; `backends` has a backend for each decode."""

    def __init__(self, server: Server, backends: Any) -> None:
        self._server, self._backends = server, backends

    def run(self, index: int, attend: Callable[[Any, Any, Inputs], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Run step `index`. Returns its output and queries [rows, q_heads, dim], request by request.

        See speculative/eagle_worker_v2.py:660, `draft`.
        """
        server, step = self._server, self._server.case.steps[index]
        queries = draw_queries(server.case, index, step.padded_tokens, server.case.geometry.head_dim_qk)
        batch = self._batch(step)
        locations = [
            batch_of(server, one_decode(step, number)).out_cache_loc for number in range(step.tokens_per_request)
        ]
        self._backends.init_forward_metadata(batch)
        # Keeps the runner, which pads a batch, from planning it again.
        batch.mark_forward_metadata_ready()
        outs = []
        for number, location in enumerate(locations):
            batch.out_cache_loc = location
            outs.append(self._decode(batch, step, number, queries, attend))
        return torch.stack(outs, dim=1).flatten(0, 1), queries

    def _decode(
        self,
        batch: Any,
        step: Step,
        number: int,
        queries: torch.Tensor,
        attend: Callable[[Any, Any, Inputs], torch.Tensor],
    ) -> torch.Tensor:
        """Run one decode, padded as by ModelRunner.forward (model_executor/model_runner.py:1730). Returns its rows."""
        server, decode, requests = self._server, one_decode(step, number), len(step.requests)
        backend = self._backends.attn_backends[number]
        server.model_runner.attn_backend = backend
        batch.input_ids = torch.ones(requests, dtype=torch.int64, device=server.bench.device)
        if decode.padded:
            count_tokens_of_ranks(server, batch, decode)
            pad(server, batch)
        rows = batch.input_ids.shape[0]
        stride, spare = step.tokens_per_request, len(queries) - step.tokens
        at = [row * stride + number for row in range(requests)]
        at += [step.tokens + row % spare for row in range(rows - requests)]
        with server.forwarding():
            inputs = Inputs.place(server.case, server.bench, queries[at], new_keys(server, decode, rows))
            out = attend(backend, batch, inputs)
        if decode.padded:
            hidden = torch.zeros((rows, HIDDEN_SIZE), dtype=server.case.geometry.dtype.torch_dtype)
            # Attention ignores logits too.
            outputs = {"next_token_logits": hidden, "hidden_states": hidden, "last_hidden_states": None}
            batch.post_forward_mlp_sync_batch(SimpleNamespace(**outputs))
        batch.positions.add_(1)
        return out[:requests]

    def _batch(self, step: Step) -> Any:
        """Return the batch before its decodes, with the prefix's lengths (speculative/eagle_worker_common.py:241)."""
        server, prefix = self._server, one_decode(step)
        batch = batch_of(server, prefix)
        batch.spec_info = draft_input(server.loaded, server.case, prefix, server.bench.device)
        for name in ("seq_lens", "seq_lens_cpu"):
            getattr(batch, name).sub_(1)
        batch.seq_lens_sum -= len(step.requests)
        return batch
