"""fmha_v2 assumes as many rows of K and V as the batch has queries. Needs FlashInfer and a Hopper GPU.

First one query over two keys of logits 0 and ln 3: weights 1/4 and 3/4 of values 0 and 1, so attention is 3/4.
Then four queries of which the last sees the only key, whose value is 1. After K and V there are rows of NaN, which
belong to no tensor.
"""

import math

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.prefill import trtllm_fmha_v2_prefill

require_gpu(hopper=True)

HEAD_DIM = 64


def attend(layout: str, q_len: int, kv_len: int) -> float:
    """Return the last query's first element. The first logit is 0, others are ln 3; the last value is 1, others 0."""
    query = torch.zeros(q_len, 1, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    query[..., 0] = math.sqrt(HEAD_DIM)
    # The first rows are the keys; the rest is memory outside the tensor.
    around = torch.full((64, 2, 1, HEAD_DIM), math.nan, dtype=torch.bfloat16, device="cuda")
    kv = around[:kv_len].zero_()
    kv[1:, 0, 0, 0] = math.log(3)
    kv[kv_len - 1, 1] = 1
    around_key, around_value = (around[:, axis].contiguous() for axis in (0, 1))
    separate = (query, around_key[:kv_len], around_value[:kv_len])
    out = trtllm_fmha_v2_prefill(
        separate if layout == "SEPARATE_Q_K_V" else (query, kv),
        layout,
        workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"),
        seq_lens=torch.tensor([kv_len], dtype=torch.int32, device="cuda"),
        max_q_len=q_len,
        max_kv_len=max(q_len, kv_len),
        bmm1_scale=1 / math.sqrt(HEAD_DIM),
        bmm2_scale=1.0,
        batch_size=1,
        cum_seq_lens_q=torch.tensor([0, q_len], dtype=torch.int32, device="cuda"),
        cum_seq_lens_kv=torch.tensor([0, kv_len], dtype=torch.int32, device="cuda"),
    )
    return out[-1, 0, 0].item()


for layout in ("SEPARATE_Q_K_V", "CONTIGUOUS_Q_KV"):
    for q_len, kv_len, expected in ((1, 2, 0.75), (4, 1, 1.0)):
        seen = attend(layout, q_len, kv_len)
        show(
            f"{layout}, queries {q_len}, keys {kv_len}: expected {expected}, seen {seen}",
            wrong=not abs(seen - expected) < 0.02,
        )
finish()
