"""The repair of rows of requests without keys, in plain torch: the reference for every fixup kernel.

Ragged attention kernels may leave such rows of out and lse unwritten, and a merge would mix in their previous contents
(SGLang PR #22688, which introduced the kernel of this name and signature).
"""

import torch

_OUT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fixup_zero_kv_rows(
    out: torch.Tensor, lse: torch.Tensor, kv_lens: torch.Tensor, cum_seq_lens: torch.Tensor, max_seq_len: int
) -> None:
    """Write out = 0 and lse = -inf for every token of a request whose kv_len is 0; touch nothing else.

    out [tokens, heads, dim] float32, bfloat16 or float16; lse [tokens, heads] float32; kv_lens [batch] int32;
    cum_seq_lens [batch + 1] int32: request b has the tokens from cum_seq_lens[b] up to cum_seq_lens[b + 1]. At most
    the first `max_seq_len` tokens of a request are written. Raises ValueError for other shapes or dtypes.
    """
    _check(out, lse, kv_lens, cum_seq_lens, max_seq_len)
    # In 64 bits, because the stated maximum may be arbitrarily large.
    first = cum_seq_lens[:-1].long()
    last = torch.minimum(cum_seq_lens[1:], first + max_seq_len)
    token = torch.arange(out.shape[0], device=out.device).unsqueeze(1)
    empty = ((kv_lens == 0) & (token >= first) & (token < last)).any(dim=1)
    out.masked_fill_(empty[:, None, None], 0.0)
    lse.masked_fill_(empty[:, None], -torch.inf)


def _check(
    out: torch.Tensor, lse: torch.Tensor, kv_lens: torch.Tensor, cum_seq_lens: torch.Tensor, max_seq_len: int
) -> None:
    if out.ndim != 3 or out.dtype not in _OUT_DTYPES:
        raise ValueError(f"out must be [tokens, heads, dim] of float32, bfloat16 or float16, not {_described(out)}")
    if lse.shape != out.shape[:2] or lse.dtype != torch.float32:
        raise ValueError(f"lse must be float32 of shape {list(out.shape[:2])}, not {_described(lse)}")
    if kv_lens.ndim != 1 or kv_lens.dtype != torch.int32:
        raise ValueError(f"kv_lens must be int32 of shape [batch], not {_described(kv_lens)}")
    if cum_seq_lens.shape != (kv_lens.shape[0] + 1,) or cum_seq_lens.dtype != torch.int32:
        entries = kv_lens.shape[0] + 1
        raise ValueError(f"cum_seq_lens must be int32 of shape [{entries}], not {_described(cum_seq_lens)}")
    if max_seq_len < 0:
        raise ValueError(f"max_seq_len must be 0 or more, not {max_seq_len}")


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
