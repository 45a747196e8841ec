"""fmha_v2 hides the error of its launch for a batch without requests. Needs FlashInfer and a Hopper GPU.

The next operation that checks for errors reports it as its own.
"""

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.prefill import trtllm_fmha_v2_prefill

require_gpu(hopper=True)

HEAD_DIM, PAGE = 64, 16
LATER = torch.ones(4, device="cuda")


def attend(requests: int) -> None:
    """Attend with requests of one query and one key, and a row of padding."""
    rows = requests + 1
    trtllm_fmha_v2_prefill(
        (
            torch.ones(rows, 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
            torch.ones(1, 2, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        ),
        "Q_PAGED_KV_HND",
        workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"),
        seq_lens=torch.ones(requests, dtype=torch.int32, device="cuda"),
        max_q_len=1,
        max_kv_len=1,
        bmm1_scale=0.125,
        bmm2_scale=1.0,
        batch_size=requests,
        cum_seq_lens_q=torch.arange(rows, dtype=torch.int32, device="cuda"),
        cum_seq_lens_kv=torch.arange(rows, dtype=torch.int32, device="cuda"),
        block_tables=torch.zeros(requests, 1, dtype=torch.int32, device="cuda"),
        out=torch.zeros(rows, 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
    )


for requests in (1, 0):
    try:
        attend(requests)
    except Exception as error:  # noqa: BLE001 - any exception is an answer
        show(f"{requests} requests: {type(error).__name__}")
        continue
    try:
        LATER.add_(1)
    except RuntimeError as error:
        show(f"{requests} requests: no exception; the next operation: {str(error).splitlines()[0]}", wrong=True)
    else:
        show(f"{requests} requests: an answer, and the next operation works")
finish()
