"""Attention of one request by torch's plain operations, for backends whose kernels do something else: the parts of it.

It is computed on the host: a dozen small launches for each request are what jobs that share a GPU wait for most.
"""

import math

import torch

from attnfuzz.kernels.backend import Attended
from attnfuzz.kernels.torch_sdpa import visible
from attnfuzz.kernels.transfers import write

EVERY_KEY = slice(None)


def attend_into(out: torch.Tensor, lse: torch.Tensor, entry: Attended, scale: float, keys: slice = EVERY_KEY) -> None:
    """Write causal attention in fp64 to some of a request's keys, and its LSE in base 2: 0 and -inf where none is seen.

    `entry` lies on the host; out [q_len, q_heads, ...] and lse [q_len, q_heads] on any device, of any float dtype. The
    last query is aligned to the last of all keys.
    """
    group = entry.query.shape[1] // entry.key.shape[1]
    key, value = (
        tokens[keys].double().repeat_interleave(group, dim=1).transpose(0, 1) for tokens in (entry.key, entry.value)
    )
    mask = visible(len(entry.query), len(entry.key), -1)[:, keys]
    logits = entry.query.double().transpose(0, 1) @ key.transpose(1, 2) * scale
    logits.masked_fill_(~mask, -torch.inf)
    logsumexp = logits.logsumexp(dim=2, keepdim=True)
    weights = torch.where(mask, (logits - logsumexp).exp(), 0.0)
    write(out, (weights @ value).transpose(0, 1))
    write(lse, (logsumexp.squeeze(2) / math.log(2)).transpose(0, 1))
