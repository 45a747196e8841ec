"""Values of ValueFamily.PROBE, with which one missing, repeated or wrong key changes a small exact count.

All elements are +-1 except those of queries, of which there are two kinds. With q = 0, all weights are equal, and an
output times the number of keys is a count. Otherwise q selects the key at one position by the position's bits: that key
has all the weight, and the output is its value. A query does not depend on the number of keys: if its position is past
the end, the keys with the most similar bits share the weight.
"""

from math import ceil, log2, sqrt

import torch

from attnfuzz.reference.chance import Chance

_POSITION_BITS = 16
_LEAST_GAP = 64.0
"""Minimum distance between the selected key's logit and the next, with bmm1_scale = 1 / sqrt(head_dim_qk)."""

_SCALES = (0, 4, 7)
_CODES = [(scale, scale + bit) for bit in range(1, 17) for scale in _SCALES if scale + bit <= 17]
"""log2 of (half period, block) of each code, the most useful first: 2^0 distinguishes keys, 2^4 pages, 2^7 blocks."""

_TARGETS = 13
"""Exponent: targets are below 2^13, and near ones are more likely."""


def probe_values(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    """Return values of +-1, [tokens, heads, dim]: codes of the position in even elements, random signs in odd ones.

    A code changes its sign every `half period` positions, and once more at every block: it is (-1)^(floor(j / half
    period) + floor(j / block)). Its sum over any run of positions stays within two half periods, so even the rounded
    sum shows a single missing or repeated key. The block's bit identifies the key. Elements past the last code, and the
    odd ones, distinguish sequences and heads.
    """
    signs = chance.sign(heads, dim)
    count = min((dim + 1) // 2, len(_CODES))
    half_period, block = torch.tensor(_CODES[:count], dtype=torch.int32, device=chance.device).unbind(dim=-1)
    position = chance.position.unsqueeze(-1)
    signs[..., : 2 * count : 2] = _signs(position >> half_period ^ position >> block).unsqueeze(1)
    return signs


def probe_keys(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    """Return keys: the first half like values, since V is the first part of a latent, then the bits of the position."""
    keys = torch.empty(chance.tokens, heads, dim, device=chance.device)
    keys[..., : dim // 2] = probe_values(chance, heads, dim // 2)
    keys[..., dim // 2 :] = _bits(chance.position, dim).unsqueeze(1)
    return keys


def probe_queries(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    """Return queries: every other head is 0, with a random phase per token; the others select the key of a position.

    Those positions are 2^k - 1, 2^k, the first or last of a page of 16, or any below 2^k, for k of up to 12.
    """
    # One share for the token's phase, and per row one each for range, kind and position.
    shares = chance.share(1 + 3 * heads)
    phase = (shares[:, :1] * 2).long()
    size, kind, place = shares[:, 1:].unflatten(-1, (3, heads)).unbind(dim=1)
    end = 1 << (size.square() * _TARGETS).long()
    inside = (place * end).long()
    targets = torch.stack((end - 1, end, inside // 16 * 16, inside | 15, inside))
    target = targets.gather(0, (kind * len(targets)).long().unsqueeze(0)).squeeze(0)
    picks = (torch.arange(heads, device=chance.device) + phase) % 2 == 1
    queries = torch.zeros(chance.tokens, heads, dim, device=chance.device)
    queries[..., dim // 2 :] = _bits(target, dim) * (picks.unsqueeze(-1) * _strength(dim))
    return queries


def _bits(position: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the bits of each position [...] as +-1, repeated: [..., dim - dim // 2]."""
    bit = torch.arange(dim - dim // 2, dtype=torch.int32, device=position.device) % _POSITION_BITS
    return _signs(position.unsqueeze(-1) >> bit)


def _strength(dim: int) -> float:
    """Return the size of a selecting query's elements: a power of two, exact in every dtype, for `_LEAST_GAP`."""
    repeats = max((dim - dim // 2) // _POSITION_BITS, 1)
    return 2.0 ** min(ceil(log2(_LEAST_GAP * sqrt(dim) / (2 * repeats))), 8)


def _signs(parity: torch.Tensor) -> torch.Tensor:
    """Return +1 where an integer is even, -1 where it is odd."""
    return (parity & 1).mul_(-2).add_(1).to(torch.float32)
