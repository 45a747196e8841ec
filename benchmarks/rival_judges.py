"""Rivals of the judge: fixed tolerances that other projects use, given the same exact answer."""

from math import log

import torch
from decode_batch import DecodeBatch, Found

_HEADS_AT_ONCE = 128


def rivals(batch: DecodeBatch) -> dict[str, Found]:
    """Return the rival judges by name.

    `allclose 1e-2` is torch.allclose at 1e-2. `flash-attn 2x` follows flash-attention's tests
    (tests/test_flash_attn.py): the largest error of the output may be twice that of a plain attention in the same
    precision; the LSE is not tested. `FlashInfer tests` follows FlashInfer's tests of its TRT-LLM kernels: 1e-2 on the
    output, rtol 1e-3 and atol 3e-3 on the LSE.
    """
    answer = batch.budget.answer
    exact_lse = answer.lse / log(2.0)
    allowed = 2 * (_same_precision(batch).double() - answer.out).abs().max().item()

    def close(out: torch.Tensor, lse: torch.Tensor, lse_rtol: float, lse_atol: float) -> bool:
        right = torch.allclose(out.double(), answer.out, rtol=1e-2, atol=1e-2)
        return right and torch.allclose(lse.double(), exact_lse, rtol=lse_rtol, atol=lse_atol)

    return {
        "allclose 1e-2": lambda out, lse: not close(out, lse, 1e-2, 1e-2),
        "flash-attn 2x": lambda out, _: (out.double() - answer.out).abs().max().item() > allowed,
        "FlashInfer tests": lambda out, lse: not close(out, lse, 1e-3, 3e-3),
    }


def _same_precision(batch: DecodeBatch) -> torch.Tensor:
    """Compute attention with torch in the inputs' dtype, rounded after each operation: [requests, heads, dim]."""
    requests = []
    for request in range(len(batch.out)):
        query, keys, values = batch.tokens(request)
        key, value = keys[:, 0].float(), values[:, 0].float()
        scaled = query * batch.budget.problem.bmm1_scale
        parts = []
        for heads in scaled.split(_HEADS_AT_ONCE):
            logits = (heads.float() @ key.T).to(scaled.dtype)
            weights = torch.softmax(logits, dim=-1, dtype=torch.float32).to(scaled.dtype)
            parts.append((weights.float() @ value).to(scaled.dtype))
        requests.append(torch.cat(parts))
    return torch.stack(requests)
