"""cuDNN's prefill through FlashInfer, with one query per request and groups of heads. Needs cuDNN's frontend and a GPU.

Each query sees four keys with logits of 0: its LSE is log2(4) = 2. Before the call, the buffer holds 7. FlashInfer
multiplies it by log2(e) where cuDNN wrote nothing: 10.099.
"""

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python nvidia-cudnn-frontend"):
    import cudnn
    import torch
    from flashinfer.cudnn import cudnn_batch_prefill_with_kv_cache

require_gpu()

HEAD_DIM, PAGE, KEYS = 128, 16, 4
print(f"cuDNN {cudnn.backend_version()}, torch {torch.__version__}")


def lse_of(q_len: int, heads: int, kv_heads: int) -> list[float]:
    """Return the LSE of the last query's heads, in base 2."""
    lse = torch.full((q_len, heads), 7.0, device="cuda")
    rows = torch.tensor([0, q_len], dtype=torch.int32, device="cuda")
    cudnn_batch_prefill_with_kv_cache(
        torch.zeros(q_len, heads, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        torch.zeros(1, kv_heads, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        torch.ones(1, kv_heads, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        HEAD_DIM**-0.5,
        torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"),
        max_token_per_sequence=q_len,
        max_sequence_kv=PAGE,
        actual_seq_lens_q=torch.tensor([q_len], dtype=torch.int32, device="cuda").view(-1, 1, 1, 1),
        actual_seq_lens_kv=torch.tensor([KEYS], dtype=torch.int32, device="cuda").view(-1, 1, 1, 1),
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device="cuda"),
        causal=True,
        return_lse=True,
        batch_offsets_q=rows * heads * HEAD_DIM,
        batch_offsets_o=rows * heads * HEAD_DIM,
        batch_offsets_stats=rows * heads,
        out=torch.empty(q_len, heads, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        lse=lse,
    )
    return [round(each, 3) for each in lse[-1].tolist()]


for q_len, heads, kv_heads in ((1, 4, 4), (2, 4, 2), (1, 4, 2)):
    seen = lse_of(q_len, heads, kv_heads)
    show(
        f"queries {q_len}, heads {heads} over {kv_heads}: expected {[2.0] * heads}, seen {seen}",
        wrong=any(abs(each - 2) > 0.01 for each in seen),
    )
# cuDNN's bindings would list the objects that FlashInfer keeps.
finish(without_cleanup=True)
