"""Queries whose keys are all masked, on each of torch's kernels. Needs a GPU that cuDNN's attention supports."""

from _template import finish, require_gpu, requirements, show

with requirements("torch"):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

require_gpu()

print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
query, key = (torch.ones(1, 1, length, 64, dtype=torch.bfloat16, device="cuda") for length in (4, 2))
# The last query is aligned to the last key: the first two see none.
mask = torch.ones(4, 2, dtype=torch.bool, device="cuda").tril(-2)

for kernel in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
    with sdpa_kernel([kernel]):
        out = torch.nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=mask)
    seen = out[0, 0, :, 0].tolist()
    show(f"{kernel.name}: expected [0.0, 0.0, 1.0, 1.0], seen {seen}", wrong=seen != [0.0, 0.0, 1.0, 1.0])
finish()
