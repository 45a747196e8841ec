"""FlashInfer's ragged and single prefill on FA3 confuse tokens with heads in the layout HND.

Needs FlashInfer and a Hopper GPU. Queries are 0, so each outputs the mean of V over the keys that it sees. V holds 10
times its head plus its token. Each call runs in its own process, because it may crash it.
"""

import sys
from itertools import product

from _template import finish, in_child, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

HEADS, DIM = 4, 64


def call(entry: str, backend: str, layout: str, tokens: int) -> None:
    """Run one causal call with as many queries as keys, and print its last row."""
    indptr = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    query = torch.zeros(tokens, HEADS, DIM, dtype=torch.bfloat16, device="cuda")
    key = torch.zeros(tokens, HEADS, DIM, dtype=torch.bfloat16, device="cuda")
    value = torch.arange(tokens, device="cuda").view(-1, 1) + 10 * torch.arange(HEADS, device="cuda")
    value = value.unsqueeze(2).expand(-1, -1, DIM).to(torch.bfloat16)
    k, v = (each if layout == "NHD" else each.transpose(0, 1).contiguous() for each in (key, value))
    if entry == "single":
        out = flashinfer.single_prefill_with_kv_cache(query, k, v, causal=True, kv_layout=layout, backend=backend)
        print([round(head, 1) for head in out[-1, :, 0].tolist()])
        return
    workspace = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, layout, backend=backend)
    wrapper.plan(indptr, indptr, HEADS, HEADS, DIM, causal=True, q_data_type=torch.bfloat16)
    print([round(head, 1) for head in wrapper.run(query, k, v)[-1, :, 0].tolist()])


def main() -> None:
    """Make each call in its own process, and compare its last row."""
    require_gpu(hopper=True)
    for entry, tokens in product(("ragged", "single"), (2, 24)):
        expected = [(tokens - 1) / 2 + 10 * head for head in range(HEADS)]
        for backend, layout in (("fa2", "HND"), ("fa3", "NHD"), ("fa3", "HND")):
            words = f"{entry} on {backend}, {layout}, {tokens} tokens"
            seen, code = in_child(entry, backend, layout, tokens)
            if code > 0:
                print(f"{words}: the call can't be made: {seen}")
                sys.exit(2)
            numbers = [] if code else [float(number) for number in seen.strip("[]").split(",")]
            wrong = code < 0 or any(abs(a - b) > 0.5 for a, b in zip(numbers, expected, strict=True))
            show(f"{words}: expected {expected}, seen {seen}", wrong=wrong)
    finish()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        call(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
