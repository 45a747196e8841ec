"""FlashInfer's paged prefill raises where k_scale is a tensor, which its annotation allows. Needs a GPU.

A query of ones has logits of 0 and 2 for two keys, whose values are 0 and 1.
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


def ints(*numbers: int) -> torch.Tensor:
    """Metadata as the docstring of plan has it."""
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


QUERY = torch.ones(1, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE = torch.zeros(1, 2, 16, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE[0, 0, 1], CACHE[0, 1, 1] = 0.25, 1.0
wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
    torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", backend="fa2"
)
wrapper.plan(ints(0, 1), ints(0, 1), ints(0), ints(2), 1, 1, 64, 16, q_data_type=torch.bfloat16)


def answer(scale: float | torch.Tensor) -> str:
    """The first element of the output, or the exception."""
    try:
        return f"{wrapper.run(QUERY, CACHE, k_scale=scale).flatten()[0].item():.3f}"
    except TypeError as error:
        first, _, last = str(error).partition(" when calling")
        return f"TypeError: {first}{last[last.rfind('. Expected') :]}"


number, tensor = answer(0.5), answer(torch.tensor([0.5], device="cuda"))
print(f"k_scale as a float: {number}")
print(f"k_scale as a tensor: {tensor}")
sys.exit(number != tensor)
