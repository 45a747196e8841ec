"""FlashInfer raises if scales are tensors, which annotations and docstrings allow. Needs FlashInfer and a GPU.

A query of ones has logits of 0 and 2 for two keys, whose values are 0 and 1.
"""

import sys
from collections.abc import Callable
from typing import Any

try:
    import flashinfer
    import torch
except ImportError as error:
    print(f"{error}: pip install flashinfer-python")
    sys.exit(2)

if not torch.cuda.is_available():
    print("needs a GPU")
    sys.exit(2)


def ints(*numbers: int) -> torch.Tensor:
    """Return metadata as in the docstring of plan."""
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


QUERY = torch.ones(1, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE = torch.zeros(1, 2, 16, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE[0, 0, 1], CACHE[0, 1, 1] = 0.25, 1.0
wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
    torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", backend="fa2"
)
wrapper.plan(ints(0, 1), ints(0, 1), ints(0), ints(2), 1, 1, 64, 16, q_data_type=torch.bfloat16)


def persistent() -> flashinfer.BatchAttention:
    """Return a BatchAttention planned for the same batch."""
    made = flashinfer.BatchAttention("NHD", device="cuda")
    lists = (ints(0, 1), ints(0, 1), ints(0), ints(2))
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    made.plan(*lists, 1, 1, 64, 64, 16, causal=True, **types)
    return made


def answer(run: Callable[..., Any], **scale: float | torch.Tensor) -> str:
    """Return the first element of the output, or the exception."""
    try:
        found = run(QUERY, CACHE, **scale)
    except TypeError as error:
        first, _, last = str(error).partition(" when calling")
        return f"TypeError: {first}{last[last.rfind('. Expected') :]}"
    out = found[0] if isinstance(found, tuple) else found
    return f"{out.flatten()[0].item():.3f}"


refused = False
for name, run in {"paged prefill": wrapper.run, "BatchAttention": persistent().run}.items():
    for scale in ("k_scale", "v_scale"):
        number = answer(run, **{scale: 0.5})
        tensor = answer(run, **{scale: torch.tensor([0.5], device="cuda")})
        print(f"{name}, {scale} as a float: {number}; as a tensor: {tensor}")
        refused |= number != tensor
sys.exit(refused)
