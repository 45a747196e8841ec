"""Each level of FlashInfer's cascade has its own window. Needs FlashInfer and a GPU.

One query has logits of 0 for keys in pages of one token, whose values are 1, 2, 3 and 4. The last page belongs to the
request, those before it are shared. A window of 2 keys ends at the last key.
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

DIM, PAGES = 128, 4


def integers(*numbers: int) -> torch.Tensor:
    """Return metadata of a plan."""
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


QUERY = torch.zeros(1, 1, DIM, dtype=torch.bfloat16, device="cuda")
CACHE = torch.zeros(PAGES, 2, 1, 1, DIM, dtype=torch.bfloat16, device="cuda")
CACHE[:, 1] = torch.arange(1, PAGES + 1, device="cuda").view(PAGES, 1, 1, 1)
LAYER = {"causal": True, "window_left": 1, "q_data_type": torch.bfloat16}


def workspace() -> torch.Tensor:
    """Return a workspace as large as the docstring recommends."""
    return torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")


whole = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD")
whole.plan(integers(0, 1), integers(0, PAGES), integers(*range(PAGES)), integers(1), 1, 1, DIM, 1, **LAYER)
expected = whole.run(QUERY, CACHE).flatten()[0].item()

levels = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace(), "NHD")
levels.plan(
    [integers(0, 1)] * 2,
    [integers(0, PAGES - 1), integers(0, 1)],
    [integers(*range(PAGES - 1)), integers(PAGES - 1)],
    [integers(1)] * 2,
    1,
    1,
    DIM,
    1,
    **LAYER,
)
seen = levels.run(QUERY, CACHE).flatten()[0].item()
print(f"the last 2 of 4 keys: paged prefill {expected}, two levels {seen}")
sys.exit(expected != seen)
