"""Attention of one request by torch's plain operations on whatever device its queries are on: the parts of a whole."""

import math

import torch

from attnfuzz.kernels.backend import Attended
from attnfuzz.kernels.torch_sdpa import visible
from attnfuzz.kernels.transfers import to_device

EVERY_KEY = slice(None)


def attention(entry: Attended, scale: float, keys: slice = EVERY_KEY) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention in fp64 to some of a request's keys, and its LSE in base 2. Rows that see none give 0 and -inf.

    Both [q_len, q_heads, ...]; the last query is aligned to the last of all keys.
    """
    device, group = entry.query.device, entry.query.shape[1] // entry.key.shape[1]
    key, value = (
        to_device(tokens[keys], device).double().repeat_interleave(group, dim=1).transpose(0, 1)
        for tokens in (entry.key, entry.value)
    )
    mask = to_device(visible(len(entry.query), len(entry.key), -1)[:, keys], device)
    logits = entry.query.double().transpose(0, 1) @ key.transpose(1, 2) * scale
    logits.masked_fill_(~mask, -torch.inf)
    lse = logits.logsumexp(dim=2, keepdim=True)
    weights = torch.where(mask, (logits - lse).exp(), 0.0)
    return (weights @ value).transpose(0, 1), (lse.squeeze(2) / math.log(2)).transpose(0, 1)
