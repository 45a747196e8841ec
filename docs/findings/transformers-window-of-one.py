"""A sliding window of one key has no effect in transformers' continuous batching. Needs torch and transformers."""

from _template import finish, requirements, show

with requirements("torch transformers"):
    import torch
    import transformers
    from transformers.generation.continuous_batching.utils import build_attention_mask

print(f"torch {torch.__version__}, transformers {transformers.__version__}")
for window in (3, 2, 1):
    mask = torch.full((4, 4), -torch.inf)
    build_attention_mask(mask, [0, 4], [0, 4], sliding_window=window)
    seen = (mask == 0).sum(-1).tolist()
    expected = [min(position + 1, window) for position in range(4)]
    show(f"keys that 4 queries see in a window of {window}: expected {expected}, seen {seen}", wrong=seen != expected)
finish()
