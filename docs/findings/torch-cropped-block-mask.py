"""torch cannot crop a block mask, or leaves blocks beyond its end in it. Needs torch 2.6 or later, and no GPU."""

from _template import finish, requirements, show

with requirements("'torch>=2.6'"):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

BLOCK = 128
CASES = (
    ("all keys", lambda _batch, _head, _query, key: key >= 0, 388, 188),
    ("all keys but 100 to 299", lambda _batch, _head, _query, key: (key < 100) | (key >= 300), 512, 384),
)

print(f"torch {torch.__version__}")
for name, seen, longer, cropped in CASES:
    words = f"{name}, {longer} keys cropped to {cropped}"
    try:
        mask = create_block_mask(seen, None, None, BLOCK, longer, device="cpu")
        mask = mask._adjust(BLOCK, cropped)  # noqa: SLF001 - the method that flex_attention's message names
    except IndexError as error:
        show(f"{words}: {error}", wrong=True)
        continue
    kept = mask.full_kv_indices.flatten()[: mask.full_kv_num_blocks.flatten()[0].item()].tolist()
    wrong = any(block >= cropped // BLOCK for block in kept)
    show(f"{words}: seen as a whole are the blocks {kept} of {cropped // BLOCK}", wrong=wrong)
finish()
