"""SDPA of jagged tensors on a CPU raises if a batch's last sequence has no keys. Needs only torch."""

import warnings

from _template import finish, requirements, show

with requirements("torch"):
    import torch

warnings.simplefilter("ignore")
print(f"torch {torch.__version__}")
for lengths in ([2, 1], [0, 1], [2, 0], [1, 0], [2, 0, 1]):
    starts = torch.tensor([0, *lengths]).cumsum(0)
    tokens = torch.ones(sum(lengths), 1, 8)
    queries = torch.nested.nested_tensor_from_jagged(torch.ones(len(lengths), 1, 8), torch.arange(len(lengths) + 1))
    keys = torch.nested.nested_tensor_from_jagged(tokens, starts)
    query, key = queries.transpose(1, 2), keys.transpose(1, 2)
    expected = [float(length > 0) for length in lengths]
    try:
        out = torch.nn.functional.scaled_dot_product_attention(query, key, key)
        seen = out.transpose(1, 2).values()[:, 0, 0].tolist()
    except RuntimeError as error:
        seen = str(error)
    show(f"keys of the sequences {lengths}: expected {expected}, seen {seen}", wrong=seen != expected)
finish()
