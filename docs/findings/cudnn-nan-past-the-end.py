"""cuDNN's kernels through FlashInfer, with NaN past a request's last key. Needs FlashInfer, cuDNN and a GPU.

Each query sees only keys with logits of 0 and values of 1, so attention is 1.
"""

import math

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python nvidia-cudnn-frontend"):
    import cudnn
    import torch
    from flashinfer.cudnn import cudnn_batch_decode_with_kv_cache, cudnn_batch_prefill_with_kv_cache

require_gpu()

HEAD_DIM, PAGE, KEYS = 128, 16, 2
lengths = torch.tensor([KEYS], dtype=torch.int32, device="cuda").view(-1, 1, 1, 1)
table = torch.zeros(1, 1, dtype=torch.int32, device="cuda")
workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")


def decode(queries: int, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Run with as many queries as keys, or with one."""
    query = torch.zeros(queries, 1, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    return cudnn_batch_decode_with_kv_cache(
        query,
        key,
        value,
        HEAD_DIM**-0.5,
        workspace,
        max_sequence_kv=PAGE,
        actual_seq_lens_kv=lengths,
        block_tables=table,
        q_len_per_req=queries,
        out=torch.empty_like(query),
    )


def prefill(queries: int, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Run the same as a causal prefill."""
    query = torch.zeros(queries, 1, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    rows = torch.tensor([0, queries], dtype=torch.int32, device="cuda") * HEAD_DIM
    out, _ = cudnn_batch_prefill_with_kv_cache(
        query,
        key,
        value,
        HEAD_DIM**-0.5,
        workspace,
        max_token_per_sequence=queries,
        max_sequence_kv=PAGE,
        actual_seq_lens_q=torch.full_like(lengths, queries),
        actual_seq_lens_kv=lengths,
        block_tables=table,
        causal=True,
        return_lse=True,
        batch_offsets_q=rows,
        batch_offsets_o=rows,
        out=torch.empty_like(query),
    )
    return out


print(f"cuDNN {cudnn.backend_version()}, torch {torch.__version__}")
for name, call, queries in (("decode", decode, 1), ("decode", decode, 2), ("prefill", prefill, 2)):
    for in_keys, in_values in ((0.0, 0.0), (math.nan, 0.0), (0.0, math.nan)):
        key, value = (
            torch.full((1, 1, PAGE, HEAD_DIM), filling, dtype=torch.bfloat16, device="cuda")
            for filling in (in_keys, in_values)
        )
        key[:, :, :KEYS], value[:, :, :KEYS] = 0, 1
        seen = call(queries, key, value)[:, 0, 0].tolist()
        show(
            f"{name}, q {queries}, {in_keys} in K and {in_values} in V: expected {[1.0] * queries}, seen {seen}",
            wrong=any(not abs(row - 1) < 0.02 for row in seen),
        )
# cuDNN's bindings would list the objects that FlashInfer keeps.
finish(without_cleanup=True)
