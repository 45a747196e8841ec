"""cuDNN's decode through FlashInfer, with windows longer than all keys. Needs FlashInfer, cuDNN's frontend and a GPU.

In every window, one query sees one key of value 1: out is 1, and with a logit of 0 its LSE is 0.
"""

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python nvidia-cudnn-frontend"):
    import cudnn
    import torch
    from flashinfer.cudnn import cudnn_batch_decode_with_kv_cache

require_gpu()

HEAD_DIM, PAGE = 128, 16
print(f"cuDNN {cudnn.backend_version()}, torch {torch.__version__}")

for name, window_left in (("-1", -1), ("2^20", 1 << 20), ("2^31 - 2", (1 << 31) - 2), ("2^31 - 1", (1 << 31) - 1)):
    out = torch.full((1, 1, HEAD_DIM), 7.0, dtype=torch.bfloat16, device="cuda")
    lse = torch.full((1, 1), 7.0, device="cuda")
    cudnn_batch_decode_with_kv_cache(
        torch.zeros(1, 1, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        torch.zeros(1, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        torch.ones(1, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        HEAD_DIM**-0.5,
        torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"),
        max_sequence_kv=PAGE,
        actual_seq_lens_kv=torch.ones(1, 1, 1, 1, dtype=torch.int32, device="cuda"),
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device="cuda"),
        return_lse=True,
        window_left=window_left,
        out=out,
        lse=lse,
    )
    seen, seen_lse = out[0, 0, 0].item(), lse[0, 0].item()
    show(
        f"a window of {name}: expected out 1 and lse 0, seen out {seen} and lse {seen_lse}",
        wrong=not (abs(seen - 1) < 0.02 and abs(seen_lse) < 0.02),
    )
# cuDNN's bindings would list the objects that FlashInfer keeps.
finish(without_cleanup=True)
