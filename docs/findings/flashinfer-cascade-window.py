"""Each level of FlashInfer's cascade has its own window. Needs FlashInfer and a GPU.

One query has logits of 0 for keys in pages of one token, whose values are 1, 2, 3 and 4. The last page belongs to the
request, those before it are shared. A window of 2 keys ends at the last key.
"""

from _flashinfer import ints, workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()

DIM, PAGES = 128, 4


QUERY = torch.zeros(1, 1, DIM, dtype=torch.bfloat16, device="cuda")
CACHE = torch.zeros(PAGES, 2, 1, 1, DIM, dtype=torch.bfloat16, device="cuda")
CACHE[:, 1] = torch.arange(1, PAGES + 1, device="cuda").view(PAGES, 1, 1, 1)
LAYER = {"causal": True, "window_left": 1, "q_data_type": torch.bfloat16}


whole = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD")
whole.plan(ints(0, 1), ints(0, PAGES), ints(*range(PAGES)), ints(1), 1, 1, DIM, 1, **LAYER)
expected = whole.run(QUERY, CACHE).flatten()[0].item()

levels = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace(), "NHD")
levels.plan(
    [ints(0, 1)] * 2,
    [ints(0, PAGES - 1), ints(0, 1)],
    [ints(*range(PAGES - 1)), ints(PAGES - 1)],
    [ints(1)] * 2,
    1,
    1,
    DIM,
    1,
    **LAYER,
)
seen = levels.run(QUERY, CACHE).flatten()[0].item()
show(f"the last 2 of 4 keys: paged prefill {expected}, two levels {seen}", wrong=expected != seen)
finish()
