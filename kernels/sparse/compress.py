"""The compressor in a step: states of new tokens are saved, then groups that end in the step become keys.

A request has a ring of rows of state: position p is in row p % ring of it. The ring holds a window, and all new tokens
of a step.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from attnfuzz.kernels.interface.backend import WrittenCache, WrittenTensor
from attnfuzz.kernels.sparse.inputs import NAN_BYTE, OpInputs, pool_pages
from attnfuzz.reference.chance import Chance, TokenRun, mixed
from attnfuzz.reference.sparse.case import SparseCase
from attnfuzz.reference.sparse.compressor import EPSILON, Pooling, cos_sin_table, parts_of, window_of
from attnfuzz.reference.sparse.indexer import key_view, scale_view

if TYPE_CHECKING:
    from attnfuzz.kernels.sparse.session import ChainSession

_NONE = torch.zeros(2, 0, dtype=torch.int64)
_SALTS = (6 << 32, 7 << 32, 8 << 32, 9 << 32)


class _Tokens:
    """The tokens of a step, with their rows of state and their keys."""

    def __init__(self, inputs: OpInputs) -> None:
        geometry = inputs.geometry
        self.ratio, self.window = geometry.ratio, window_of(geometry.ratio)
        self.width = geometry.index_dim * parts_of(geometry.ratio)
        self.requests = inputs.step.requests
        self.ring = ring_of(inputs.case)
        lengths = [request.kv_len for request in self.requests]
        runs = [TokenRun(inputs.index * (1 << 12) + b, length) for b, length in enumerate(lengths)]
        values, scores = (Chance(runs, mixed(salt, inputs.seed)).normal(self.width) for salt in _SALTS[:2])
        self.values, self.scores = values.split(lengths), scores.split(lengths)
        one = Chance([TokenRun(0, self.ratio)], mixed(_SALTS[2], inputs.seed))
        self.embedding = one.normal(self.width)
        self.weight = Chance([TokenRun(0, 1)], mixed(_SALTS[3], inputs.seed)).normal(geometry.index_dim)[0]
        self.new = [
            (b, position)
            for b, request in enumerate(self.requests)
            for position in range(request.kv_len - request.q_len, request.kv_len)
        ]

    def row(self, request: int, position: int) -> int:
        """Return the row of state of a position."""
        return request * self.ring + position % self.ring

    def states(self, request: int, position: int) -> torch.Tensor:
        """Return the right state of a position, float32 [2 * width]."""
        score = self.scores[request][position] + self.embedding[position % self.ratio]
        return torch.cat((self.values[request][position], score))


def ring_of(case: SparseCase) -> int:
    """Return the rows of state of each request."""
    most = max((request.q_len for step in case.steps for request in step.requests), default=1)
    return window_of(case.geometry.ratio) + most - 1


def compressed(session: "ChainSession", inputs: OpInputs) -> Iterator[WrittenCache]:
    """Save the states of a step's new tokens, then compress on right states. Yields both results."""
    tokens, size = _Tokens(inputs), inputs.geometry.page_size
    batch = max(len(step.requests) for step in inputs.case.steps)
    blocks = -(-max(batch * tokens.ring, 1) // size)
    content = torch.full((blocks, size, 2 * tokens.width * 4), NAN_BYTE, dtype=torch.uint8).view(torch.float32)
    flat = content.view(-1, 2 * tokens.width)
    for b, request in enumerate(tokens.requests):
        first = request.kv_len - request.q_len
        for position in range(max(first - tokens.window + 1, 0), first):
            flat[tokens.row(b, position)] = tokens.states(b, position)
    states = session.pool("state_cache", content)
    padding = len(inputs.rows) - len(tokens.new)
    positions = torch.tensor([position for _, position in tokens.new] + [0] * padding, dtype=torch.int64)
    rows = torch.tensor([tokens.row(*each) for each in tokens.new], dtype=torch.int64)
    before = states.clone()
    nothing = torch.zeros(padding, tokens.width)
    session.launch(
        inputs,
        "save_states",
        {
            "kv": torch.cat((_rows(tokens, tokens.values), nothing)),
            "score": torch.cat((_rows(tokens, tokens.scores), nothing)),
            "ape": tokens.embedding,
            "positions": positions,
            "slot_mapping": torch.cat((rows, torch.full((padding,), -1))),
            "state_cache": states,
        },
        {},
    )
    right = torch.stack([tokens.states(*each) for each in tokens.new]) if tokens.new else flat[:0]
    due = right[:, None]
    old, new = (each.clone().view(torch.int32)[:, :, None] for each in (before, states))
    at = torch.stack((rows // size, rows % size))
    order = tuple((b, position - (tokens.requests[b].kv_len - tokens.requests[b].q_len)) for b, position in tokens.new)
    saved = WrittenTensor("state_cache", old, new, at, due, due, _NONE)
    yield WrittenCache((saved,), order, session.name_of("save_states"))
    flat[rows] = right
    session.correct(states, content)
    yield _compress(session, inputs, tokens, states, positions, order)


def _rows(tokens: _Tokens, of_requests: tuple[torch.Tensor, ...]) -> torch.Tensor:
    own = [of_requests[b][position] for b, position in tokens.new]
    return torch.stack(own) if own else torch.zeros(0, tokens.width)


def _compress(
    session: "ChainSession",
    inputs: OpInputs,
    tokens: _Tokens,
    states: torch.Tensor,
    positions: torch.Tensor,
    order: tuple[tuple[int, int], ...],
) -> WrittenCache:
    size, dim, ratio = inputs.geometry.page_size, inputs.geometry.index_dim, tokens.ratio
    windows = torch.full((len(positions), tokens.window), -1, dtype=torch.int64)
    slots = torch.full((len(positions),), -1, dtype=torch.int64)
    gathered = torch.full((len(positions), tokens.window, 2 * tokens.width), torch.nan)
    for row, (b, position) in enumerate(tokens.new):
        for at, other in enumerate(range(position - tokens.window + 1, position + 1)):
            if other >= 0:
                windows[row, at] = tokens.row(b, other)
                gathered[row, at] = tokens.states(b, other)
        if (position + 1) % ratio == 0:
            slots[row] = inputs.slots_of(b, torch.tensor([position // ratio]))[0]
    ends = (slots >= 0).nonzero()[:, 0]
    table = cos_sin_table(
        max((request.kv_len for step in inputs.case.steps for request in step.requests), default=1), dim
    )
    pooling = Pooling(
        gathered[ends, :, : tokens.width],
        gathered[ends, :, tokens.width :],
        positions[ends],
        tokens.weight,
        table,
        ratio,
    )
    cache = session.pool(
        "kv_cache", torch.full((pool_pages(inputs.case), size * (dim + 4)), NAN_BYTE, dtype=torch.uint8)
    )
    before = cache.clone()
    given: dict[str, Any] = {
        "state_cache": states,
        "gather_slots": windows,
        "positions": positions,
        "kv_slot_mapping": slots,
        "rms_norm_weight": tokens.weight,
        "rms_norm_eps": EPSILON,
        "cos_sin_cache": table,
        "kv_cache": cache,
        "page_size": size,
        "compress_ratio": ratio,
    }
    session.launch(inputs, "compress", given, {})
    places = torch.stack((slots[ends] // size, slots[ends] % size))
    scales = pooling.scales
    held = scale_view(cache, size)[places[0], places[1]].view(torch.float32)[:, 0, 0]
    within = (scales.low <= held) & (held <= scales.high)
    numbers = pooling.numbers(torch.where(within, held, scales.high))
    views = (("scales of the indexer's cache", scale_view, scales), ("keys of the indexer's cache", key_view, numbers))
    written = tuple(
        WrittenTensor(
            name,
            view(before, size),
            view(cache, size),
            places,
            low.view(len(ends), 1, view(cache, size).shape[-1]),
            high.view(len(ends), 1, view(cache, size).shape[-1]),
            _NONE,
        )
        for name, view, (low, high) in views
    )
    return WrittenCache(written, tuple(order[int(row)] for row in ends), session.name_of("compress"))
