"""FlashInfer uses bit offsets into a packed mask as byte offsets. Needs FlashInfer and a GPU.

Two requests have a query and 16 keys with the values 1 to 16; their masks show only the first key. All logits are 0.
The four bytes of the packed masks begin a tensor of zeros, so reads past them find no key.
"""

from _flashinfer import ints, workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()


MASK = (torch.arange(16, device="cuda") == 0).repeat(2)
MEMORY = torch.zeros(1024, dtype=torch.uint8, device="cuda")
PACKED = MEMORY[:4]
PACKED.copy_(flashinfer.quantization.packbits(MASK, bitorder="little"))
QUERIES = torch.zeros(2, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE = torch.zeros(2, 2, 16, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE[:, 1] = torch.arange(1, 17, device="cuda").view(16, 1, 1)
WORKSPACE = workspace()


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


for name, attend in (("paged", paged), ("ragged", ragged)):
    plain, packed = attend(custom_mask=MASK), attend(packed_custom_mask=PACKED)
    show(f"{name}: custom_mask {plain}, packed_custom_mask {packed}; expected [1.0, 1.0]", wrong=plain != packed)
finish()
