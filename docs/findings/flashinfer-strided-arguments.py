"""FlashInfer's paged prefill accepts strided arguments and uses them as if they were dense. Needs FlashInfer and a GPU.

Two requests have two queries and 16 keys each, on a page of their own. Each line has one argument with the same
elements that is not contiguous. All reads and writes stay inside the tensors.
"""

from _flashinfer import ints, workspace
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch

require_gpu()

HEADS = 4
torch.manual_seed(0)
QUERIES = torch.randn(4, HEADS, 64, dtype=torch.bfloat16, device="cuda")
CACHE = torch.randn(3, 2, 16, 1, 64, dtype=torch.bfloat16, device="cuda")


PAGES, LENGTHS = ints(1, 2), ints(16, 16)


def attend(pages: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> list[torch.Tensor]:
    """Plan and run, and return dense copies of the output and the LSE."""
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend="fa2")
    wrapper.plan(ints(0, 2, 4), ints(0, 1, 2), pages, lengths, HEADS, 1, 64, 16, q_data_type=torch.bfloat16)
    wrapper.run(QUERIES, CACHE, out=out, lse=lse, return_lse=True)
    return [out.contiguous(), lse.contiguous()]


def dense_out() -> torch.Tensor:
    """Return an output in the layout of the queries."""
    return torch.zeros_like(QUERIES)


def dense_lse() -> torch.Tensor:
    """Return an LSE of tokens times heads."""
    return torch.zeros(4, HEADS, device="cuda")


EXPECTED = attend(PAGES, LENGTHS, dense_out(), dense_lse())
heads_first_out = torch.zeros(HEADS, 4, 64, dtype=torch.bfloat16, device="cuda").transpose(0, 1)
heads_first_lse = torch.zeros(HEADS, 4, device="cuda").t()
lines = {
    "all dense": (PAGES, LENGTHS, dense_out(), dense_lse()),
    "out with heads first": (PAGES, LENGTHS, heads_first_out, dense_lse()),
    "lse with heads first": (PAGES, LENGTHS, dense_out(), heads_first_lse),
    "every other page id, 0 between them": (ints(1, 0, 2, 0)[::2], LENGTHS, dense_out(), dense_lse()),
    "every other last_page_len, 1 between them": (PAGES, ints(16, 1, 16, 1)[::2], dense_out(), dense_lse()),
}
for name, arguments in lines.items():
    found = attend(*arguments)
    out, lse = (int((one != other).sum()) for one, other in zip(found, EXPECTED, strict=True))
    counts = f"{out} of {EXPECTED[0].numel()} elements of out differ, {lse} of {EXPECTED[1].numel()} of lse"
    show(f"{name}: {counts}", wrong=out + lse)
finish()
