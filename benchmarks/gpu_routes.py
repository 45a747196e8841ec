"""Draft extends on Hopper: TRT-LLM's decode kernel (XQA) against its context kernel (fmha_v2), by batch and length."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from gpu_measurement import Table, captured, in_pairs, require_gpu
from measurement import count_option, json_option

from attnfuzz.kernels.gpu.direct.xqa import draft_mask, workspace_bytes

TOKENS = 4
PAGE, Q_HEADS, KV_HEADS, DIM = 16, 16, 8, 64
"""A geometry that both kernels are already compiled for, by the buckets of backends."""

BATCHES = (1, 4, 16, 64)
KV_LENS = (1024, 4096, 8192, 32768)
CALLS = 10


@dataclass(frozen=True)
class DraftExtend:
    """A batch of requests with 4 queries each and KV of one length, and tensors for both kernels, all on the GPU."""

    batch: int
    kv_len: int

    def routes(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return the call of the decode kernel and that of the context kernel."""
        # The import creates a CUDA context.
        from flashinfer.decode import xqa_batch_decode_with_kv_cache  # noqa: PLC0415
        from flashinfer.prefill import trtllm_fmha_v2_prefill  # noqa: PLC0415

        width = self.kv_len // PAGE
        query = torch.randn(self.batch * TOKENS, Q_HEADS, DIM, dtype=torch.bfloat16, device="cuda")
        cache = torch.randn(self.batch * width, 2, KV_HEADS, PAGE, DIM, dtype=torch.bfloat16, device="cuda")
        pages = torch.randperm(self.batch * width, device="cuda").int().view(self.batch, width)
        lengths = torch.full((self.batch,), self.kv_len, dtype=torch.int32, device="cuda")
        starts_q, starts_kv = (
            torch.arange(self.batch + 1, dtype=torch.int32, device="cuda") * each for each in (TOKENS, self.kv_len)
        )
        sizes = {"q_heads": Q_HEADS, "kv_heads": KV_HEADS, "head_dim": DIM}
        processors = torch.cuda.get_device_properties(0).multi_processor_count
        need = workspace_bytes(batch=self.batch, q_len=TOKENS, processors=processors, **sizes)
        decode_workspace = torch.zeros(need.total, dtype=torch.uint8, device="cuda")
        context_workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
        mask = draft_mask([TOKENS] * self.batch, TOKENS).view(self.batch, TOKENS, -1).cuda()
        decoded, extended = torch.empty_like(query), torch.empty_like(query)
        scale = 1 / math.sqrt(DIM)

        def decode() -> torch.Tensor:
            xqa_batch_decode_with_kv_cache(
                query,
                (cache[:, 0], cache[:, 1]),
                decode_workspace,
                pages,
                lengths.view(torch.uint32),
                self.kv_len,
                bmm1_scale=scale,
                bmm2_scale=1.0,
                out=decoded,
                kv_layout="HND",
                q_len_per_req=TOKENS,
                mask=mask,
            )
            return decoded

        def context() -> torch.Tensor:
            trtllm_fmha_v2_prefill(
                (query, cache),
                "Q_PAGED_KV_HND",
                context_workspace,
                lengths,
                TOKENS,
                self.kv_len,
                scale,
                1.0,
                self.batch,
                starts_q,
                starts_kv,
                block_tables=pages,
                out=extended,
                mask_mode="causal",
            )
            return extended

        return decode, context


@click.command()
@count_option("--rounds", 20, "Pairs of measurements of each batch.")
@json_option
def main(*, rounds: int, json_file: Path | None) -> None:
    """Check that both routes agree, then time them, launched from Python and in a graph."""
    require_gpu()
    columns = ("", "decode, us", "context", "context over it", "in a graph", "context", "context over it")
    title = f"Draft extends of {TOKENS} tokens, bf16, {Q_HEADS} heads on {KV_HEADS}, head dim {DIM}, pages of {PAGE}"
    table = Table(title, columns, json_file)
    for batch in BATCHES:
        for kv_len in KV_LENS:
            decode, context = DraftExtend(batch, kv_len).routes()
            torch.testing.assert_close(decode(), context(), rtol=2e-2, atol=2e-2)
            graphs = captured(decode, CALLS), captured(context, CALLS)
            times = (*in_pairs(decode, context, rounds=rounds, calls=CALLS), *in_pairs(*graphs, rounds=rounds, calls=1))
            scaled = (times[0], times[1], times[3] / CALLS, times[4] / CALLS)
            launched, other, work, other_work = (f"{seconds * 1e6:.1f}" for seconds in scaled)
            name = f"batch {batch}, {kv_len:,} keys"
            table.row(name, launched, other, f"{times[2]:.2f}", work, other_work, f"{times[5]:.2f}")


if __name__ == "__main__":
    main()
