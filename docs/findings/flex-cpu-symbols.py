"""flex_attention with a document mask and dynamic lengths does not compile for a CPU. Needs torch and g++."""

from _template import finish, requirements, show

with requirements("torch"):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

print(f"torch {torch.__version__}")
tokens, keys = 5, 12
document_of_query, document_of_key = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0] * 5 + [1] * 7)
position_of_query, position_of_key = torch.tensor([2, 3, 4, 5, 6]), torch.tensor([*range(5), *range(7)])


def seen(_batch, _head, row, column):
    """Return whether a query sees a key: causal, within a document."""
    causal = position_of_key[column] <= position_of_query[row]
    return (document_of_query[row] == document_of_key[column]) & causal


query, key, value = torch.randn(1, 4, tokens, 32), torch.randn(1, 2, keys, 32), torch.randn(1, 2, keys, 32)
mask = create_block_mask(seen, None, None, tokens, keys, device="cpu")
expected = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
for dynamic in (False, True):
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=dynamic)
    try:
        out = compiled(query, key, value, block_mask=mask, enable_gqa=True)
    except RuntimeError as error:
        line = next((line for line in str(error).splitlines() if "not declared" in line), str(error).splitlines()[0])
        show(f"dynamic={dynamic}: {type(error).__name__}: {line.partition('error: ')[2] or line}", wrong=True)
    else:
        show(f"dynamic={dynamic}: largest difference to eager {(out - expected).abs().max():.1g}")
finish()
