"""torch's varlen_attn drops a right window of at least max_k keys. Needs torch 2.11 or later, and a CUDA GPU."""

from _template import finish, require_gpu, requirements, show

with requirements("'torch>=2.11'"):
    import torch
    from torch.nn.attention.varlen import varlen_attn

require_gpu()


def last_of(count: int, window: tuple[int, int]) -> torch.Tensor:
    """Attend with `count` queries to one key, whose value is 1. Returns the outputs, fp32 [count]."""
    query = torch.ones(count, 1, 64, dtype=torch.bfloat16, device="cuda")
    starts, ends = (torch.tensor([0, n], dtype=torch.int32, device="cuda") for n in (count, 1))
    return varlen_attn(query, query[:1], query[:1], starts, ends, count, 1, window_size=window)[:, 0, 0].float()


print(f"torch {torch.__version__}")
# The queries are 2, 1 and 0 tokens before the key.
for right, expected in ((0, [0, 0, 1]), (1, [0, 1, 1]), (2, [1, 1, 1])):
    seen = last_of(3, (5, right)).tolist()
    show(f"{right} keys to the right: expected {expected}, seen {seen}", wrong=seen != expected)
finish()
