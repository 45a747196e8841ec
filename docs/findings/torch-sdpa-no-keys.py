"""Attention to no keys is 0, unless the sum of the query overflows: then it is NaN. Needs only torch."""

from _template import finish, requirements, show

with requirements("torch"):
    import torch

print(f"torch {torch.__version__}")
for dtype, large in ((torch.float16, 4e4), (torch.bfloat16, 2e38), (torch.float32, 2e38)):
    query = torch.full((1, 1, 1, 2), large, dtype=dtype)
    no_keys = torch.empty(1, 1, 0, 2, dtype=dtype)
    out = torch.nn.functional.scaled_dot_product_attention(query, no_keys, no_keys)
    seen = out.flatten().tolist()
    show(f"{dtype}: expected [0.0, 0.0], seen {seen}", wrong=seen != [0.0, 0.0])
finish()
