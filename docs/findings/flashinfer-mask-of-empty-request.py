"""A request without pages shifts the masks of later requests in FlashInfer's paged prefill. Needs a GPU.

Pages have 16 tokens. The first of three requests has 4 queries and 16 keys, the second a query and no keys, the third a
query and 16 keys with the values 1 to 16, of which its mask shows only the first. All logits are 0.
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
    """Return metadata as in the docstring of plan."""
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


FIRST_KEY = torch.arange(16, device="cuda") == 0
MASK = torch.cat((torch.ones(4 * 16, dtype=torch.bool, device="cuda"), FIRST_KEY))
QUERIES = torch.zeros(6, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE = torch.zeros(2, 2, 16, 1, 64, dtype=torch.bfloat16, device="cuda")
CACHE[:, 1] = torch.arange(1, 17, device="cuda").view(16, 1, 1)


def last(queries_without_keys: int) -> float:
    """Return the output of the third request, if the second has this many queries."""
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", backend="fa2"
    )
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
print(f"behind a request without keys and queries: expected 1.0, seen {idle}")
print(f"behind a request without keys, which has a query: expected 1.0, seen {empty}")
sys.exit(not abs(empty - 1) < 0.01)
