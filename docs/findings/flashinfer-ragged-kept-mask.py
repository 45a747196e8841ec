"""A ragged plan of FlashInfer without a mask keeps the mask of the previous plan. Needs FlashInfer and a GPU.

One query has logits of 0 for two keys, whose values are 1 and 3. The first plan's mask hides the second key.
"""

from _flashinfer import ints, workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()


HIDDEN = torch.tensor([True, False], device="cuda")
QUERY = torch.zeros(1, 1, 64, dtype=torch.bfloat16, device="cuda")
KEYS = torch.zeros(2, 1, 64, dtype=torch.bfloat16, device="cuda")
VALUES = torch.tensor([1.0, 3.0], dtype=torch.bfloat16, device="cuda").view(2, 1, 1).expand(2, 1, 64).contiguous()
Wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper


def answer(wrapper: Wrapper, mask: torch.Tensor | None) -> float:
    """Plan with or without a mask, and return the first element of the output."""
    wrapper.plan(ints(0, 1), ints(0, 2), 1, 1, 64, custom_mask=mask, q_data_type=torch.bfloat16)
    return wrapper.run(QUERY, KEYS, VALUES).flatten()[0].item()


def new() -> Wrapper:
    """Return a wrapper with a workspace as large as the docstring recommends."""
    return Wrapper(workspace(), "NHD", backend="fa2")


kept = new()
masked, behind, alone = answer(kept, HIDDEN), answer(kept, None), answer(new(), None)
show(f"planned with the mask: expected 1.0, seen {masked}")
show(f"then planned without one: expected 2.0, seen {behind}; in a new wrapper {alone}", wrong=behind != alone)
finish()
