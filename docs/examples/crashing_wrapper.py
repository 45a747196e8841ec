"""A server's last step with a FlashInfer wrapper: docs/guides/reproduce.md imports its dump.

Two requests are planned, and the second one's page ids are counted from 1, so that its last page is the one past the
pool. It needs no GPU: FlashInfer dumps the calls, and where the run would launch its kernel the script dies, which
leaves the same files as a crash.
"""

from typing import Any
from unittest import mock

import flashinfer
import torch

PAGES_OF_POOL, PAGE, KV_LENS = 6, 16, [40, 45]
HEADS, KV_HEADS, DIM = 8, 2, 64
ALLOCATE = torch.empty


def main() -> None:
    """Plan the step, and run it."""
    torch.manual_seed(1)
    workspace = torch.zeros(1 << 20, dtype=torch.uint8)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=False)
    wrapper.plan(
        indptr=torch.tensor([0, 3, 6], dtype=torch.int32),
        indices=torch.tensor([0, 1, 2, 4, 5, 6], dtype=torch.int32),
        last_page_len=torch.tensor([kv_len - 2 * PAGE for kv_len in KV_LENS], dtype=torch.int32),
        num_qo_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        page_size=PAGE,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    cache = torch.randn(PAGES_OF_POOL, 2, PAGE, KV_HEADS, DIM).to(torch.bfloat16)
    wrapper.run(torch.randn(len(KV_LENS), HEADS, DIM).to(torch.bfloat16), cache)


def unpinned(*size: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
    """Allocate as torch.empty does, without a GPU for which memory could be pinned."""
    del pin_memory
    return ALLOCATE(*size, **options)


if __name__ == "__main__":
    kernels = mock.Mock(plan=mock.Mock(return_value=[]), run=mock.Mock(side_effect=RuntimeError("the kernel's turn")))
    with (
        mock.patch("torch.empty", unpinned),
        mock.patch("flashinfer.decode.get_compute_capability", return_value=(9, 0)),
        mock.patch("flashinfer.decode.get_batch_decode_module", return_value=kernels),
    ):
        main()
