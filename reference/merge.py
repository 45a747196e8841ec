"""Attention over parts of the KV, put together from each part's output and log-sum-exp."""

import torch


def merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention over the keys of both parts, in fp64.

    out [..., heads, dim] and natural-log lse [..., heads] of each part; a part without keys has lse = -inf, and its out
    is not looked at. Both without keys give out = 0, lse = -inf. The formula is that of Flash-Decoding (Dao et al.,
    2023): weights exp(lse_i - lse), with lse = log(exp(lse_a) + exp(lse_b)).
    """
    lses = torch.stack((lse_a, lse_b)).double()
    lse = torch.logsumexp(lses, dim=0)
    seen = lses > -torch.inf
    weights = torch.exp(lses - lse).unsqueeze(-1)
    outs = torch.stack((out_a, out_b)).double()
    return torch.where(seen.unsqueeze(-1), outs * weights, 0.0).sum(dim=0), lse
