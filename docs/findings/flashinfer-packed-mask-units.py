"""FlashInfer uses bit offsets into a packed mask as byte offsets. Needs FlashInfer and a GPU.

Two requests have a query and 16 keys with the values 1 to 16; their masks show only the first key. All logits are 0.
The four bytes of the packed masks begin a tensor of zeros, so reads past them find no key.
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
    """Return metadata as in the docstrings of plan."""
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


MASK = (torch.arange(16, device="cuda") == 0).repeat(2)
MEMORY = torch.zeros(1024, dtype=torch.uint8, device="cuda")
PACKED = MEMORY[:4]
PACKED.copy_(flashinfer.quantization.packbits(MASK, bitorder="little"))
QUERIES = torch.zeros(2, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE = torch.zeros(2, 2, 16, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE[:, 1] = torch.arange(1, 17, device="cuda").view(16, 1, 1)
WORKSPACE = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")


def paged(**mask: torch.Tensor) -> list[float]:
    """Return the output of each request, with its keys in a page."""
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, "NHD", backend="fa2")
    starts = ints(0, 1, 2)
    wrapper.plan(starts, starts, ints(0, 1), ints(16, 16), 1, 1, 64, 16, q_data_type=torch.bfloat16, **mask)
    return wrapper.run(QUERIES, CACHE)[:, 0, 0].tolist()


def ragged(**mask: torch.Tensor) -> list[float]:
    """Return the output of each request, with its keys and values packed."""
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, "NHD", backend="fa2")
    wrapper.plan(ints(0, 1, 2), ints(0, 16, 32), 1, 1, 64, q_data_type=torch.bfloat16, **mask)
    keys, values = CACHE.transpose(0, 1).reshape(2, 32, 1, 64)
    return wrapper.run(QUERIES, keys, values)[:, 0, 0].tolist()


seen = []
for name, attend in (("paged", paged), ("ragged", ragged)):
    plain, packed = attend(custom_mask=MASK), attend(packed_custom_mask=PACKED)
    print(f"{name}: custom_mask {plain}, packed_custom_mask {packed}; expected [1.0, 1.0]")
    seen.append(plain != packed)
sys.exit(any(seen))
