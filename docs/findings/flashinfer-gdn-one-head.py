"""FlashInfer's decode with a gated delta rule, for one request with one value head. Needs FlashInfer and a Hopper GPU.

Zero states, and q, k, v, gates of ones: the state becomes beta k v^T with beta = 1/2, so each output is
scale * sum(q * k) / 2 = 1/2. The first call of a shape compiles its kernel; each order runs in a process of its own.
"""

import sys

from _template import finish, in_child, require_gpu, requirements, show

with requirements("flashinfer-python nvidia-cutlass-dsl"):
    import cutlass  # noqa: F401 - FlashInfer's module needs it
    import torch
    from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose

require_gpu(hopper=True)

DIM = 128


def decode(requests: int, heads: int, dtype: torch.dtype) -> float:
    """Run one step, and return an element of the output."""
    ones = torch.ones(requests, 1, heads, DIM, dtype=torch.bfloat16, device="cuda")
    zeros = torch.zeros(requests, 1, heads, dtype=torch.bfloat16, device="cuda")
    out, _ = gated_delta_rule_decode_pretranspose(
        ones,
        ones,
        ones,
        None,
        A_log=torch.zeros(heads, device="cuda"),
        a=zeros,
        dt_bias=torch.zeros(heads, dtype=torch.bfloat16, device="cuda"),
        b=zeros,
        scale=1 / DIM,
        use_qk_l2norm=False,
        initial_state=torch.zeros(requests, heads, DIM, DIM, dtype=dtype, device="cuda"),
        initial_state_indices=torch.arange(requests, dtype=torch.int32, device="cuda"),
    )
    return out[0, 0, 0, 0].item()


if sys.argv[1:]:
    dtype = getattr(torch, sys.argv[1])
    print([decode(*map(int, call.split("x")), dtype) for call in sys.argv[2:]][-1])
    sys.exit()

for dtype in ("float32", "bfloat16"):
    for calls in (["1x2"], ["2x1"], ["2x1", "1x1"], ["1x1"]):
        seen, _ = in_child(dtype, *calls)
        show(
            f"states in {dtype}, requests x heads {', then '.join(calls)}: expected 0.5, seen {seen}",
            wrong=seen != "0.5",
        )
finish()
