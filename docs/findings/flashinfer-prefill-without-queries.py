"""FlashInfer's prefill of one request crashes the process if it has no queries. Needs FlashInfer and a GPU.

The call runs in its own process. An exception would be correct, too.
"""

import signal
import subprocess
import sys

try:
    import flashinfer
    import torch
except ImportError as error:
    print(f"{error}: pip install flashinfer-python")
    sys.exit(2)


def call(queries: int) -> None:
    """Run one call with 4 keys."""
    query = torch.ones(queries, 1, 64, dtype=torch.bfloat16, device="cuda")
    keys = torch.ones(4, 1, 64, dtype=torch.bfloat16, device="cuda")
    flashinfer.single_prefill_with_kv_cache(query, keys, keys, backend="fa2")
    torch.cuda.synchronize()


def main() -> int:
    """Return the exit code: 1 if the call without queries crashes its process."""
    if not torch.cuda.is_available():
        print("needs a GPU")
        return 2
    died = False
    for queries in (1, 0):
        child = subprocess.run([sys.executable, __file__, str(queries)], capture_output=True, text=True, check=False)
        seen = f"death of {signal.Signals(-child.returncode).name}" if child.returncode < 0 else "an answer"
        seen = "an exception" if child.returncode > 0 else seen
        died |= child.returncode < 0
        print(f"{queries} queries: {seen}", flush=True)
    return int(died)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        call(int(sys.argv[1]))
    else:
        sys.exit(main())
