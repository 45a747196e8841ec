"""FlashInfer's kernels with sinks on FA3, for a query that sees no key. Needs FlashInfer and a Hopper GPU.

Two requests of two queries and one key: the first query of each sees no key. Then a request without keys. One head, in
bf16, with pages of one token.
"""

from _flashinfer import ints, workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu(hopper=True)

DIM = 64
CACHE = torch.ones(1, 2, 1, 1, DIM, dtype=torch.bfloat16, device="cuda")


def first_row(backend: str, sink: float, queries: int, keys: int) -> tuple[float, float]:
    """Return the first element of the first query's output, and its LSE in base 2."""
    wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(
        workspace(),
        "NHD",
        backend=backend,
        head_dim_qk=DIM,
        head_dim_vo=DIM,
    )
    wrapper.plan(
        ints(0, queries),
        ints(0, keys),
        ints(*range(keys)),
        ints(keys),
        1,
        1,
        DIM,
        1,
        causal=True,
        q_data_type=torch.bfloat16,
    )
    query = torch.ones(queries, 1, DIM, dtype=torch.bfloat16, device="cuda")
    sinks = torch.tensor([sink], device="cuda")
    out, lse = wrapper.run(query, CACHE, sinks, DIM**-0.5, return_lse=True)
    return round(out[0, 0, 0].item(), 3), round(lse[0, 0].item(), 3)


LOG2_E = 1.4427
for words, sink, queries, keys in (
    ("a request without keys, sink 1", 1.0, 1, 0),
    ("a query before the only key, sink 1", 1.0, 2, 1),
    ("a query before the only key, sink -inf", -torch.inf, 2, 1),
):
    expected = (0.0, round(sink * LOG2_E, 3))
    for backend in ("fa2", "fa3"):
        seen = first_row(backend, sink, queries, keys)
        show(f"{words}: expected out and lse {expected}, seen on {backend} {seen}", wrong=seen != expected)
finish()
