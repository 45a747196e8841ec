"""A request without pages shifts the masks of later requests in FlashInfer's paged prefill. Needs a GPU.

Pages have 16 tokens. The first of three requests has 4 queries and 16 keys, the second a query and no keys, the third a
query and 16 keys with the values 1 to 16, of which its mask shows only the first. All logits are 0.
"""

from _flashinfer import ints, workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()


FIRST_KEY = torch.arange(16, device="cuda") == 0
MASK = torch.cat((torch.ones(4 * 16, dtype=torch.bool, device="cuda"), FIRST_KEY))
QUERIES = torch.zeros(6, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE = torch.zeros(2, 2, 16, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE[:, 1] = torch.arange(1, 17, device="cuda").view(16, 1, 1)


def last(queries_without_keys: int) -> float:
    """Return the output of the third request, if the second has this many queries."""
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend="fa2")
    wrapper.plan(
        ints(0, 4, 4 + queries_without_keys, 5 + queries_without_keys),
        ints(0, 1, 1, 2),
        ints(0, 1),
        ints(16, 0, 16),
        num_qo_heads=1,
        num_kv_heads=1,
        head_dim_qk=64,
        page_size=16,
        custom_mask=MASK,
        q_data_type=torch.bfloat16,
    )
    return wrapper.run(QUERIES[: 5 + queries_without_keys], CACHE)[-1].flatten()[0].item()


idle, empty = last(0), last(1)
show(f"behind a request without keys and queries: expected 1.0, seen {idle}")
show(f"behind a request without keys, which has a query: expected 1.0, seen {empty}", wrong=not abs(empty - 1) < 0.01)
finish()
