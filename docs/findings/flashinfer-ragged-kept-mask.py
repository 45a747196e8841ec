"""A ragged plan of FlashInfer without a mask keeps the mask of the previous plan. Needs FlashInfer and a GPU.

One query has logits of 0 for two keys, whose values are 1 and 3. The first plan's mask hides the second key.
"""

import sys

try:
    import flashinfer
    import torch
except ImportError as error:
    print(f"{error}: pip install flashinfer-python")
    sys.exit(2)

if not torch.cuda.is_available():
    print("needs a GPU")
    sys.exit(2)


def indptr(*numbers: int) -> torch.Tensor:
    """Return the start of each request's rows."""
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


HIDDEN = torch.tensor([True, False], device="cuda")
QUERY = torch.zeros(1, 1, 64, dtype=torch.bfloat16, device="cuda")
KEYS = torch.zeros(2, 1, 64, dtype=torch.bfloat16, device="cuda")
VALUES = torch.tensor([1.0, 3.0], dtype=torch.bfloat16, device="cuda").view(2, 1, 1).expand(2, 1, 64).contiguous()
Wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper


def answer(wrapper: Wrapper, mask: torch.Tensor | None) -> float:
    """Plan with or without a mask, and return the first element of the output."""
    wrapper.plan(indptr(0, 1), indptr(0, 2), 1, 1, 64, custom_mask=mask, q_data_type=torch.bfloat16)
    return wrapper.run(QUERY, KEYS, VALUES).flatten()[0].item()


def new() -> Wrapper:
    """Return a wrapper with a workspace as large as the docstring recommends."""
    return Wrapper(torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", backend="fa2")


kept = new()
masked, behind, alone = answer(kept, HIDDEN), answer(kept, None), answer(new(), None)
print(f"planned with the mask: expected 1.0, seen {masked}")
print(f"then planned without one: expected 2.0, seen {behind}; in a new wrapper {alone}")
sys.exit(behind != alone)
