"""Recipes of the value families: the contents of q, K and V.

Except for EXTREME, every element fits fp8 e4m3 (up to 448) and fp16 after a cast. A token's values depend on its stream
and its index in it, but not on the number of tokens, so shortening a request does not change the others.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import sqrt

import torch

from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.chance import HOST, Chance, TokenRun, mixed
from attnfuzz.reference.probe import probe_keys, probe_queries, probe_values


class Operand(StrEnum):
    """An operand of attention."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"


_ROLE_SALT = {Operand.QUERY: 0x51, Operand.KEY: 0x4B, Operand.VALUE: 0x56}

_LARGE = 12.0
"""Standard deviation of q and K with large logits. That of the logits is 144, after division by sqrt(head_dim_qk)."""

_SMALL = 0.05
"""Standard deviation of q with one-hot values: the softmax stays nearly uniform, so that every token contributes."""

_PEAK = 4.0
"""Standard deviation of a peaked token's extra logit, above the logits' noise of about 1."""

_PEAK_EVERY = 16
"""Tokens at the edges of pages of this size can be peaked: the most common page size, or a fraction of a larger one."""

_AMPLITUDES = 8
"""Tags take the values 1 + i / 8, which fp8 e4m3 holds exactly."""


def draw(family: ValueFamily, role: Operand, shape: tuple[int, ...], *, seed: int, stream: int) -> torch.Tensor:
    """Draw one operand from one stream, float32 of `shape` [tokens, heads, dim]; see `draw_runs`.

    Raises ValueError unless `shape` has three axes.
    """
    if len(shape) != 3:
        raise ValueError(f"shape {shape} has {len(shape)} axes: give [tokens, heads, dim]")
    tokens, heads, dim = shape
    return draw_runs(family, role, [TokenRun(stream, tokens)], heads, dim, seed=seed)


def draw_runs(
    family: ValueFamily,
    role: Operand,
    runs: Sequence[TokenRun],
    heads: int,
    dim: int,
    *,
    seed: int,
    device: torch.device = HOST,
) -> torch.Tensor:
    """Draw an operand of consecutive runs, float32 [tokens, heads, dim], from family, role, seed and streams.

    The values are the same on every device, bit for bit.

    - NORMAL is standard normal.
    - PEAKED gives nearly all the weight to a few keys, many of them at page edges.
    - CONSTANT repeats one key and value at every token of a stream, so the output is that value.
    - ONE_HOT gives each token's value one element, whose position and size identify token and head, under a nearly
      uniform softmax.
    - LARGE_LOGITS has logits of several hundred.
    - ZEROS has q = 0 and values of +1 and -1, so the output is a count.
    - PROBE has exact weights in every row, and values that identify a missing key (`attnfuzz.reference.probe`).
    - DISCRETE has q and K of +1 and -1, so the weights of all rows take the same few values.
    - FAINT has weights down to below the smallest number of fp32; every second element of the output has no others.
    - STAGNANT has values that are constant along stretches of keys and nearly cancel, and weights that are equal or
      nearly so, in every second stream after a heavy first key, so all additions are rounded to one side.
    - EXTREME has the numbers that conversions and copies get wrong, from 0 and subnormal numbers to infinity and NaN,
      for writers of the KV cache.
    - UNEVEN has a magnitude for each head of each token, from 2^-20 to 2^11, or 0, and a largest element of either sign
      at any place, for writers that compute scales.
    """
    query, key, value = _RECIPES[family]
    recipe = {Operand.QUERY: query, Operand.KEY: key, Operand.VALUE: value}[role]
    return recipe(Chance(runs, mixed(_ROLE_SALT[role], seed), device), heads, dim)


def draw_sinks(family: ValueFamily, heads: int, *, seed: int, stream: int) -> torch.Tensor:
    """Draw the sinks of all heads, float32 [heads].

    They are standard normal, or with DISCRETE and FAINT 0.5, -inf (no sink), 86 (which makes the other weights almost
    as small as fp32 can represent) or -86 (which does this to the sink's own).
    """
    chance = Chance([TokenRun(stream, heads)], mixed(_ROLE_SALT[Operand.QUERY], seed))
    if family in (ValueFamily.DISCRETE, ValueFamily.FAINT):
        kinds = torch.tensor((*_EXTREME_SINKS, 0.5))
        return kinds[(chance.share(1) * len(kinds)).long().view(-1)]
    return draw(ValueFamily.NORMAL, Operand.QUERY, (heads, 1, 1), seed=seed, stream=stream).view(-1)


def _faint_keys(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    least, most = _FAINT
    distance = torch.where(_is_near(chance), 0, least) + chance.share(heads) * (most - least)
    return _as_keys(-distance, dim)


def _faint_values(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    values = chance.normal(heads, dim)
    odd = torch.arange(dim, device=chance.device) % 2 == 1
    return values.masked_fill_(_is_near(chance).unsqueeze(-1) & odd, 0)


def _is_near(chance: Chance) -> torch.Tensor:
    """Return whether a key's logit is near the largest, bool [tokens, 1]: every fourth is."""
    return (chance.position % 4 == 0).unsqueeze(-1)


def _stagnant_keys(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    of_runs = chance.of_runs().share(heads, 3)
    heavy, distance, apart = chance.spread(of_runs).unbind(-1)
    # Runs that draw apart < 0.5 have equal logits after the first.
    logit = (chance.share(heads) - 0.5) * _APART * (apart * apart - 0.25).clamp(min=0)
    first = (chance.position == 0).unsqueeze(-1) & (heavy < 0.5)
    least, most = _HEAVY
    logit = torch.where(first, least + distance * (most - least), logit)
    return _as_keys(logit, dim)


def _as_keys(logit: torch.Tensor, dim: int) -> torch.Tensor:
    """Return keys [tokens, heads, dim] with these logits [tokens, heads] under queries of `_FAINT_QUERY`."""
    # Torch divides by a number on a CPU, and multiplies by its reciprocal on a GPU, which may differ in the last bit.
    return (logit * (1 / (_FAINT_QUERY * sqrt(dim)))).unsqueeze(-1).repeat(1, 1, dim)


def _stagnant_values(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    drawn, of_runs = chance.normal(heads, dim), chance.of_runs()
    length = chance.spread(_STRETCHES.to(chance.device)[(of_runs.share(1) * len(_STRETCHES)).long()]).view(-1)
    base = chance.spread(of_runs.normal(heads, dim))
    stretch = chance.position // length
    first = torch.arange(chance.tokens, device=chance.device) - chance.position % length
    sign = (1 - stretch % 2 * 2).view(-1, 1, 1)
    return base * sign * (1 + _UNLIKE * drawn[first])


def _peaked_keys(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    drawn = chance.normal(heads * dim + 1)
    position = chance.position % _PEAK_EVERY
    at_edge = (position == 0) | (position == _PEAK_EVERY - 1)
    push = drawn[:, -1] * at_edge * (_PEAK / sqrt(dim))
    return (drawn[:, :-1] + push.unsqueeze(-1)).view(-1, heads, dim)


def _constant(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    return chance.spread(chance.of_runs().normal(heads, dim))


def _tags(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    # Tags begin at random offsets, so that sequences differ at the same position.
    begin = chance.spread((chance.of_runs().share(1) * (dim * _AMPLITUDES)).to(torch.int64))
    token = chance.position.unsqueeze(-1) + begin
    head = torch.arange(heads, device=chance.device)
    amplitude = 1.0 + (token // dim + head) % _AMPLITUDES / _AMPLITUDES
    tags = torch.zeros(chance.tokens, heads, dim, device=chance.device)
    return tags.scatter_(-1, ((token + head) % dim).unsqueeze(-1), amplitude.unsqueeze(-1))


_FAINT = 77.0, 107.0
"""Distance of the other logits from those near the largest. fp32's exp is subnormal from 87.3 on, 0 from 104 on."""

_FAINT_QUERY = 2.0

_HEAVY = 4.0, 12.0
"""Logit of a heavy first key above the others."""

_APART = 0.08
"""The largest difference of the other logits is three quarters of this."""

_STRETCHES = torch.tensor((16, 40, 150, 300, 1000))
"""Numbers of consecutive keys with one value."""

_UNLIKE = 2.0**-6
"""Standard deviation of the relative differences between values of different stretches."""

_EXTREME_SINKS = -torch.inf, 86.0, -86.0

_EXTREMES = tuple(
    sign * number
    for sign in (1.0, -1.0)
    for number in (
        *(0.0, torch.inf, torch.nan, 1.0, 1 / 3),
        # fp8 e4m3: the smallest numbers, halves of them, ties, the largest number, and the first that is too large.
        *(2.0**-6, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 1.0625, 1.1875, 448.0, 464.0, 480.0),
        # fp16 and bf16: the smallest numbers, and the largest.
        *(2.0**-14, 2.0**-24, 2.0**-126, 2.0**-133, 65504.0, 3.3895313892515355e38),
    )
)


def _extreme(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    """Draw numbers: every second element is one of the extremes, the others are normal."""
    numbers = torch.tensor(_EXTREMES, device=chance.device)
    share = chance.share(heads, dim)
    return numbers[(share * len(numbers)).long()].where(share * (1 << 16) % 2 == 0, chance.normal(heads, dim))


_MAGNITUDES = -20, 12
_SPIKE = 2.0
"""Factor of one element of a row with UNEVEN values."""


def _uneven(chance: Chance, heads: int, dim: int) -> torch.Tensor:
    """Draw normal numbers times a power of two, every eighth row 0; one element of every second row is the largest."""
    values, drawn = chance.normal(heads, dim), chance.share(heads, 4)
    low, high = _MAGNITUDES
    power = (low + drawn[..., :1] * (high - low)).floor_().exp2_()
    place = (drawn[..., 1:2] * dim).long()
    largest = values.abs().amax(dim=-1, keepdim=True) * _SPIKE
    spike = torch.where(
        drawn[..., 2:3] < 0.25, -largest, torch.where(drawn[..., 2:3] < 0.5, largest, values.gather(-1, place))
    )
    return values.scatter(-1, place, spike) * power * (drawn[..., 3:] >= 0.125)


_Recipe = Callable[[Chance, int, int], torch.Tensor]


def _times(factor: float) -> _Recipe:
    return lambda chance, heads, dim: chance.normal(heads, dim).mul_(factor)


_RECIPES: dict[ValueFamily, tuple[_Recipe, _Recipe, _Recipe]] = {
    ValueFamily.NORMAL: (Chance.normal, Chance.normal, Chance.normal),
    ValueFamily.PEAKED: (lambda chance, *shape: chance.normal(*shape).add_(1.0), _peaked_keys, Chance.normal),
    ValueFamily.CONSTANT: (Chance.normal, _constant, _constant),
    ValueFamily.ONE_HOT: (_times(_SMALL), Chance.normal, _tags),
    ValueFamily.LARGE_LOGITS: (_times(_LARGE), _times(_LARGE), Chance.normal),
    ValueFamily.ZEROS: (
        lambda chance, *shape: torch.zeros(chance.tokens, *shape, device=chance.device),
        Chance.normal,
        Chance.sign,
    ),
    ValueFamily.PROBE: (probe_queries, probe_keys, probe_values),
    ValueFamily.DISCRETE: (Chance.sign, Chance.sign, Chance.normal),
    ValueFamily.FAINT: (
        lambda chance, *shape: torch.full((chance.tokens, *shape), _FAINT_QUERY, device=chance.device),
        _faint_keys,
        _faint_values,
    ),
    ValueFamily.STAGNANT: (
        lambda chance, *shape: torch.full((chance.tokens, *shape), _FAINT_QUERY, device=chance.device),
        _stagnant_keys,
        _stagnant_values,
    ),
    ValueFamily.EXTREME: (Chance.normal, _extreme, _extreme),
    ValueFamily.UNEVEN: (Chance.normal, _uneven, _uneven),
}
"""Recipes of queries, keys and values."""
