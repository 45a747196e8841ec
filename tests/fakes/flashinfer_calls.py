"""A script whose calls of FlashInfer dump themselves without a GPU, with settings of the environment.

FlashInfer's own functions log what they were given and then find no GPU, which leaves the dump of a crashed call.
Functions of ours that carry its decorator complete.
"""

import contextlib
import time
from typing import Any
from unittest import mock

import flashinfer
import torch
from flashinfer.api_logging import flashinfer_api, flush_graph_dumps


class HalvingWrapper:
    """An object whose calls are known by its id, as those of FlashInfer's wrappers are."""

    @flashinfer_api
    def __init__(self, divisor: torch.Tensor) -> None:
        self.divisor = divisor

    @flashinfer_api
    def plan(self, lengths: torch.Tensor, *, dtype: torch.dtype) -> None:
        """Keep what was planned."""
        self.lengths, self.dtype = lengths, dtype

    @flashinfer_api
    def run(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Half of it."""
        return (values / self.divisor).to(self.dtype), None


@flashinfer_api
def doubled(lengths: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Twice as much, in `out`."""
    return torch.mul(lengths, 2, out=out)


def decode(kv_cache: Any, *scales: float, **others: Any) -> None:
    """Four requests with 20 keys each, on eight pages."""
    query = torch.arange(4 * 8 * 64, dtype=torch.bfloat16).view(8, 4, 64).transpose(0, 1)
    block_tables = torch.arange(8, dtype=torch.int32).view(4, 2)
    seq_lens = torch.full((4,), 20, dtype=torch.int32)
    workspace = torch.zeros(1024, dtype=torch.uint8)
    with contextlib.suppress(ValueError, RuntimeError):
        flashinfer.decode.trtllm_batch_decode_with_kv_cache(
            query, kv_cache, workspace, block_tables, seq_lens, 32, *scales, **others
        )


def main() -> None:
    """Make all calls once."""
    pool = torch.arange(10 * 2 * 2 * 16 * 64, dtype=torch.float32).view(10, 2, 2, 16, 64)
    decode(pool, 0.125, 1.0, out_dtype=torch.bfloat16)
    decode((pool[:, 0], pool[:, 1]), bmm1_scale=float("inf"))
    decode(pool.to(torch.float8_e4m3fn), 0.125)
    # A dump is named by its millisecond, and within one by its function: these two would change places.
    time.sleep(0.002)
    with contextlib.suppress(RuntimeError):
        flashinfer.cascade.merge_state(*(torch.ones(4, 2, *dims) for dims in ((8,), (), (8,), ())))
    time.sleep(0.002)
    wrapper = HalvingWrapper(torch.tensor(2.0))
    wrapper.plan(torch.tensor([3, 4]), dtype=torch.float16)
    wrapper.run(torch.arange(6.0).view(2, 3).t())
    lengths, out = torch.tensor([1, 2], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    with mock.patch("torch.cuda.is_current_stream_capturing", return_value=True):
        doubled(lengths, out=out)
    for now in ([3, 4], [5, 6]):
        lengths.copy_(torch.tensor(now))
        torch.mul(lengths, 2, out=out)
        flush_graph_dumps(synchronize=False)


if __name__ == "__main__":
    main()
