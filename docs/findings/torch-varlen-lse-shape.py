"""The LSE of torch's varlen_attn has a different shape than its docstring says. Needs torch 2.10 or later, no GPU."""

from _template import finish, requirements, show

with requirements("'torch>=2.10'"):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

print(f"torch {torch.__version__}")
tokens, heads, dim = 7, 4, 64
# Tensors without contents: torch returns the shape that it has registered for tracing.
with FakeTensorMode():
    states = torch.empty(tokens, heads, dim, dtype=torch.bfloat16)
    starts = torch.empty(3, dtype=torch.int32)
    out, lse = varlen_attn(states, states, states, starts, starts, 4, 4, return_aux=AuxRequest(lse=True))
documented = "(T_q, H_q)" in varlen_attn.__doc__ or "(T_q, H)" in varlen_attn.__doc__
print(f"the docstring says that the LSE is [tokens, heads]: {documented}")
wrong = documented and [*lse.shape] != [tokens, heads]
show(f"expected {[tokens, heads]}, seen {[*lse.shape]}", wrong=wrong)
finish()
