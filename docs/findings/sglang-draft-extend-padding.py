"""SGLang 0.5.23, trtllm_mha: an eager draft extend, padded for other ranks, reads past its metadata.

A rank has one request of two draft tokens; another rank has two. The batch is planned for one request, padded to two,
and passed to the decode kernel, which derives its batch size from the queries: query [4, ...] at q_len_per_req 2 is a
batch of 2, but seq_lens and block_tables have 1 row. Here known memory follows both, which shows the source of the
second row.

With FlashInfer and a GPU that it supports, its kernel is called; otherwise torch reads the same addresses.
"""

from _template import finish, requirements, show

with requirements("torch"):
    import torch

try:
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

    GPU = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9
except ImportError:
    GPU = False

DEVICE = "cuda" if GPU else "cpu"
HEADS, HEAD_DIM, PAGE, DRAFT = 2, 64, 16, 2


def addressed(query, kv_cache, seq_lens, block_tables):
    """Compute like a kernel that counts the rows of the queries (flashinfer/decode.py 0.7.2.post1, line 4321)."""
    batch = len(query) // DRAFT
    # A kernel gets a pointer, not a length.
    lengths = seq_lens.as_strided((batch,), (1,)).tolist()
    tables = block_tables.as_strided((batch, block_tables.shape[1]), block_tables.stride()).tolist()
    rows = []
    for length, table in zip(lengths, tables, strict=True):
        values = kv_cache[table, 1, 0].flatten(0, 1)[:length]
        # Zero queries: each token sees the mean of its keys' values.
        rows += [values[: length - DRAFT + 1 + token].mean(0).expand(HEADS, -1) for token in range(DRAFT)]
    return torch.stack(rows)


def called(query, kv_cache, seq_lens, block_tables):
    """Make the call of trtllm_mha_backend.py:1511. If XQA runs it, the mask of line 1870 has a row for each request."""
    mask = torch.tensor([[[1, 0], [3, 0]]] * 8, dtype=torch.int32).to(torch.uint16).cuda()[: len(seq_lens)]
    hopper = torch.cuda.get_device_capability()[0] != 10
    return trtllm_batch_decode_with_kv_cache(
        query=query,
        kv_cache=kv_cache,
        workspace_buffer=torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"),
        block_tables=block_tables,
        seq_lens=seq_lens,
        max_seq_len=PAGE,
        bmm1_scale=HEAD_DIM**-0.5,
        bmm2_scale=1.0,
        q_len_per_req=DRAFT,
        **({"mask": mask} if hopper else {}),
    )


# Page 1 is the request's, with values of 1; page 2 is another request's, with values of 7.
kv_cache = torch.zeros(3, 2, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE)
kv_cache[1, 1], kv_cache[2, 1] = 1, 7
# The plan is the first row of each. The second row is other memory after it.
seq_lens = torch.tensor([2, PAGE], dtype=torch.int32, device=DEVICE)[:1]
block_tables = torch.tensor([[1], [2]], dtype=torch.int32, device=DEVICE)[:1]
query = torch.zeros(2 * DRAFT, HEADS, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE)

out = (called if GPU else addressed)(query, kv_cache, seq_lens, block_tables)
seen = [round(row, 2) for row in out[:, 0, 0].tolist()]
print("trtllm_batch_decode_with_kv_cache" if GPU else "the addresses that it reads, in torch")
print(f"query {tuple(query.shape)}, seq_lens {tuple(seq_lens.shape)}, block_tables {tuple(block_tables.shape)}")
print(f"rows of the request: expected [1.0, 1.0], seen {seen[:DRAFT]}")
print(f"rows of padding: from no page of another request, seen {seen[DRAFT:]}, the values of page 2")
wrong = 7.0 in seen
words = "length and page id of request 1 were read from behind the metadata" if wrong else "nothing is wrong"
show(words, wrong=wrong)
finish()
