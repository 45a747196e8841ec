"""XQA crashes the process for a batch without requests. Needs FlashInfer and a Hopper GPU.

The call runs in its own process. An exception would be correct, too.
"""

import signal
import subprocess
import sys

try:
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache
except ImportError as error:
    print(f"{error}: pip install flashinfer-python")
    sys.exit(2)

HEAD_DIM, PAGE = 64, 16


def call(requests: int) -> None:
    """Run one call with one query per request."""
    trtllm_batch_decode_with_kv_cache(
        query=torch.ones(requests, 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        kv_cache=torch.ones(1, 2, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        workspace_buffer=torch.zeros(32 << 20, dtype=torch.uint8, device="cuda"),
        block_tables=torch.zeros(requests, 1, dtype=torch.int32, device="cuda"),
        seq_lens=torch.ones(requests, dtype=torch.int32, device="cuda"),
        max_seq_len=1,
        bmm1_scale=0.125,
        bmm2_scale=1.0,
    )
    torch.cuda.synchronize()


def main() -> int:
    """Return the exit code: 1 if the call without requests crashes its process."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        print("needs a Hopper GPU")
        return 2
    died = False
    for requests in (1, 0):
        child = subprocess.run([sys.executable, __file__, str(requests)], capture_output=True, text=True, check=False)
        seen = f"death of {signal.Signals(-child.returncode).name}" if child.returncode < 0 else "an answer"
        seen = "an exception" if child.returncode > 0 else seen
        died |= child.returncode < 0
        print(f"{requests} requests: {seen}", flush=True)
    return int(died)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        call(int(sys.argv[1]))
    else:
        sys.exit(main())
