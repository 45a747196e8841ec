"""A server's last call of FlashInfer, with the mistake of SGLang PR #21649: docs/reproduce.md begins with its dump.

Ten requests extend by four draft tokens each, and are planned. Then data parallelism pads the batch to twelve, and the
kernel is given twelve. It needs no GPU: FlashInfer dumps the call, and where it would load its kernel the script dies,
which leaves the same files as a crash.
"""

from unittest import mock

import flashinfer
import torch

KV_LENS = [131, 64, 287, 93, 402, 65, 178, 220, 96, 311]
Q_LEN, PAGE, PADDED_BATCH = 4, 64, 12
PAGES_OF_POOL = 400


def cumulative(lengths: list[int]) -> torch.Tensor:
    """Return [0, a, a + b, ...], as the kernel takes lengths of packed queries and keys."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def main() -> None:
    """Plan for ten requests, tell the kernel of twelve."""
    torch.manual_seed(21649)
    pool = torch.randn(PAGES_OF_POOL, 2, 2, PAGE, 256).to(torch.bfloat16)
    width = -(-max(KV_LENS) // PAGE)
    block_tables = torch.randperm(PAGES_OF_POOL, dtype=torch.int32)[: len(KV_LENS) * width].view(-1, width)
    flashinfer.prefill.trtllm_batch_context_with_kv_cache(
        query=torch.randn(PADDED_BATCH * Q_LEN, 32, 256).to(torch.bfloat16),
        kv_cache=pool,
        workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8),
        block_tables=block_tables,
        seq_lens=torch.tensor(KV_LENS, dtype=torch.int32),
        max_q_len=Q_LEN,
        max_kv_len=max(KV_LENS),
        bmm1_scale=256**-0.5,
        bmm2_scale=1.0,
        batch_size=PADDED_BATCH,
        cum_seq_lens_q=cumulative([Q_LEN] * len(KV_LENS)),
        cum_seq_lens_kv=cumulative(KV_LENS),
    )


if __name__ == "__main__":
    with mock.patch("flashinfer.prefill.get_trtllm_gen_fmha_module", side_effect=RuntimeError("the kernel's turn")):
        main()
