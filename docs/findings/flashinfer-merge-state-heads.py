"""FlashInfer's merging of two attention states fails from 65 heads on. Needs FlashInfer and a GPU.

Two states with equal weights and the outputs 1 and 3: merged, they are 2.
"""

import contextlib

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()

HEAD_DIM = 128


def in_place(heads: int) -> float:
    """Merge with merge_state_in_place, as servers merge the chunks of a long prompt."""
    first, other = (torch.full((1, heads, HEAD_DIM), value, dtype=torch.bfloat16, device="cuda") for value in (1, 3))
    lse, other_lse = torch.zeros(1, heads, device="cuda"), torch.zeros(1, heads, device="cuda")
    flashinfer.merge_state_in_place(first, lse, other, other_lse)
    torch.cuda.synchronize()
    return first[0, -1, 0].item()


def apart(heads: int) -> float:
    """Merge with merge_state, which returns the merged state."""
    first, other = (torch.full((1, heads, HEAD_DIM), value, dtype=torch.bfloat16, device="cuda") for value in (1, 3))
    lse = torch.zeros(1, heads, device="cuda")
    merged, _ = flashinfer.merge_state(first, lse, other, lse.clone())
    torch.cuda.synchronize()
    return merged[0, -1, 0].item()


for name, merge in (("merge_state_in_place", in_place), ("merge_state", apart)):
    for heads in (64, 65, 128):
        try:
            seen = merge(heads)
        except RuntimeError as error:
            seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            # The next launch reports the error of a failed one again.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device="cuda")
        show(f"{name}, {heads} heads: expected 2.0, seen {seen}", wrong=seen != 2)
finish()
