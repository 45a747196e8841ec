"""The LSE of torch's varlen_attn is +inf for a query without keys. Needs torch 2.10 or later, and a CUDA GPU."""

from _template import finish, require_gpu, requirements, show

with requirements("'torch>=2.10'"):
    import torch
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

require_gpu()


def starts(*numbers: int) -> torch.Tensor:
    """Return the start of each request, and the end of the last one."""
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


query, keys = (torch.ones(count, 1, 64, dtype=torch.bfloat16, device="cuda") for count in (2, 3))
# Two requests of one query; the second has no keys.
out, lse = varlen_attn(query, keys, keys, starts(0, 1, 2), starts(0, 3, 3), 1, 3, return_aux=AuxRequest(lse=True))
print(f"torch {torch.__version__}")
print(f"request 0, 3 keys: output {out[0, 0, 0].item()}, LSE {lse.flatten()[0].item():.3f}")
seen = lse.flatten()[1].item()
show(f"request 1, no keys: output {out[1, 0, 0].item()}, expected LSE -inf, seen {seen}", wrong=seen != -torch.inf)
finish()
