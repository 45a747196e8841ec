"""Claims about a mask that is not causal: that it is ignored, read in another layout, or another row's or request's.

Layouts are those of FlashInfer's packed masks: the bits of a request are its queries' rows of keys one after another,
beginning at a whole byte, the lowest bit of a byte first.
"""

from collections.abc import Callable, Iterator

import torch

from attnfuzz.harness.judge.explain.claim import RULE, Claim
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake
from attnfuzz.reference.problem import Problem

_BYTE = 8

_REQUESTS = 16
"""Maximum number of other requests whose masks are tried."""

Rule = Callable[[WrongRow], torch.Tensor | None]
"""Returns the mask [kv_len] that a row has if a claim is true, or None where the claim doesn't apply."""

Places = Callable[[WrongRow, torch.Tensor], torch.Tensor]
"""Returns the places of the bits of `keys` for a row, relative to the first bit of its request."""


def custom_masks(row: WrongRow) -> Iterator[Claim]:
    """Yield claims for a row under a mask, none if it is causal."""
    if row.problem.masks is None:
        return
    for words, rule in (
        ("as if the mask were ignored: the row sees the keys up to its own", _causal),
        ("as if the mask were ignored: the row sees all keys", lambda each: torch.ones(each.kv_len, dtype=torch.bool)),
        ("as if the mask were inverted", lambda each: ~each.mask),
    ):
        yield _claim(Mistake.MASK_IGNORED, words, rule)
    yield from _layouts(row)
    yield from _intervals(row)
    if row.q_len > 1:
        first = "as if the row had the mask of its request's first query"
        yield _claim(Mistake.MASK_OF_ANOTHER_ROW, first, _at(lambda _, keys: keys))
        for by, where in ((-1, "before"), (1, "after")):
            words = f"as if the row had the mask of the query {where} it"
            yield _claim(Mistake.MASK_OF_ANOTHER_ROW, words, _of_query(by))
    yield from _other_requests(row)


def _intervals(row: WrongRow) -> Iterator[Claim]:
    """Yield claims about the last key that a mask shows, as of a window that ends to the right of a query's own key."""
    yield _claim(Mistake.WINDOW, "as if the row's keys ended one later", _ended(1))
    yield _claim(Mistake.WINDOW, "as if the row's keys ended one earlier", _ended(-1))
    endless = "as if the window did not end: the row sees all keys from its first on"
    yield _claim(Mistake.WINDOW, endless, lambda each: _until(each, each.kv_len))
    if row.problem.window_left >= 0:
        words = "as if the window ended as many keys after the row's own as it begins before it"
        yield _claim(Mistake.WINDOW, words, lambda each: _until(each, each.own + each.problem.window_left + 1))


def _ended(by: int) -> Rule:
    return lambda row: _until(row, _end(row) + by) if 0 < _end(row) + by <= row.kv_len else None


def _end(row: WrongRow) -> int:
    """Return the key after the last one that the row's mask shows, 0 if it shows none."""
    return int(row.mask.nonzero().max()) + 1 if row.mask.any() else 0


def _until(row: WrongRow, end: int) -> torch.Tensor:
    """Return the row's mask, with all keys from the last one that it shows up to `end`, and none after it."""
    key = torch.arange(row.kv_len)
    return (row.mask | (key >= _end(row))) & (key < end)


def _layouts(row: WrongRow) -> Iterator[Claim]:
    whole = "as if each row of the mask began at a whole byte"
    longest = "as if the rows of the mask were as long as the longest request"
    rules: list[tuple[str, Places]] = [
        ("as if the mask were transposed", lambda each, keys: keys * each.q_len + each.token_in_request),
        (whole, lambda each, keys: each.token_in_request * _whole(each.kv_len) + keys),
        ("as if the bits of each byte of the mask were in the reverse order", _reversed),
    ]
    if row.kv_len != max(row.problem.kv_lens):
        rules.append((longest, lambda each, keys: each.token_in_request * max(each.problem.kv_lens) + keys))
    for words, places in rules:
        yield _claim(Mistake.MASK_LAYOUT, words, _at(places))
    if row.kv_len != max(row.problem.kv_lens):
        padded = "as if the rows of the mask were given padded to the longest request, and read as if they were not"
        yield _claim(Mistake.MASK_LAYOUT, padded, _given_padded)
    for bits, off in ((1, "1 bit"), (_BYTE, "1 byte")):
        for sign, where in ((1, "later"), (-1, "earlier")):
            words = f"as if the mask began {off} {where}"
            yield _claim(Mistake.MASK_LAYOUT, words, _at(_shifted(sign * bits)))


def _other_requests(row: WrongRow) -> Iterator[Claim]:
    if len(row.problem.q_lens) < 2:
        return
    in_bits = "as if the mask's offset in bits were used as an offset in bytes"
    yield _claim(Mistake.MASK_OF_ANOTHER_REQUEST, in_bits, _from_start(lambda each: _BYTE * _bits_before(each)))
    unaligned = "as if the masks of requests were packed without padding to whole bytes"
    yield _claim(Mistake.MASK_OF_ANOTHER_REQUEST, unaligned, _from_start(_bits_before))
    words = "as if the row had the mask of the batch's query with its index in the request"
    yield _claim(Mistake.MASK_OF_ANOTHER_REQUEST, words, _of_packed_query)
    others = [request for request in range(len(row.problem.q_lens)) if request != row.request][:_REQUESTS]
    for request in others:
        words = f"as if it had the mask of request {request}"
        claim = _claim(Mistake.MASK_OF_ANOTHER_REQUEST, words, _of_request(request), tried=len(others))
        yield claim


def _claim(mistake: Mistake, words: str, rule: Rule, tried: int = 1) -> Claim:
    def answer(row: WrongRow) -> Alternative | None:
        mask = None if row.problem.masks is None else rule(row)
        return None if mask is None else row.alternative(row.under(mask))

    return Claim(mistake, words, answer, RULE, tried)


def _causal(row: WrongRow) -> torch.Tensor:
    return torch.arange(row.kv_len) <= row.own


def _of_query(by: int) -> Rule:
    def rule(row: WrongRow) -> torch.Tensor | None:
        assert row.problem.masks is not None
        query = row.token_in_request + by
        return row.problem.masks[row.request][query] if 0 <= query < row.q_len else None

    return rule


def _at(places: Places) -> Rule:
    """Return a rule that reads the bits at some places, counted from the first bit of the row's request."""

    def rule(row: WrongRow) -> torch.Tensor | None:
        return _bits(row.problem, _start(row.problem, row.request) + places(row, torch.arange(row.kv_len)))

    return rule


def _from_start(start: Callable[[WrongRow], int]) -> Rule:
    """Return a rule that reads the row's bits in a mask that begins with bit `start` of the batch's masks."""

    def rule(row: WrongRow) -> torch.Tensor | None:
        return _bits(row.problem, start(row) + row.token_in_request * row.kv_len + torch.arange(row.kv_len))

    return rule


def _of_request(request: int) -> Rule:
    def rule(row: WrongRow) -> torch.Tensor | None:
        inside = request < len(row.problem.q_lens)
        return _from_start(lambda each: _start(each.problem, request))(row) if inside else None

    return rule


def _of_packed_query(row: WrongRow) -> torch.Tensor | None:
    """Return the mask of the query of the batch that has the row's index in its request."""
    assert row.problem.masks is not None
    query = row.token_in_request
    for mask in row.problem.masks:
        if query < len(mask):
            given = mask[query][: row.kv_len]
            return torch.nn.functional.pad(given, (0, row.kv_len - len(given)))
        query -= len(mask)
    return None


def _reversed(row: WrongRow, keys: torch.Tensor) -> torch.Tensor:
    place = row.token_in_request * row.kv_len + keys
    return place - place % _BYTE + _BYTE - 1 - place % _BYTE


def _given_padded(row: WrongRow) -> torch.Tensor:
    assert row.problem.masks is not None
    longest = max(row.problem.kv_lens)
    padded = torch.nn.functional.pad(row.problem.masks[row.request], (0, longest - row.kv_len)).flatten()
    return padded[row.token_in_request * row.kv_len :][: row.kv_len]


def _shifted(by: int) -> Places:
    return lambda row, keys: row.token_in_request * row.kv_len + keys + by


def _whole(bits: int) -> int:
    return -(-bits // _BYTE) * _BYTE


def _bits_before(row: WrongRow) -> int:
    """Return the number of mask entries before the row's request."""
    problem = row.problem
    before = zip(problem.q_lens[: row.request], problem.kv_lens[: row.request], strict=True)
    return sum(q_len * kv_len for q_len, kv_len in before)


def _start(problem: Problem, request: int) -> int:
    """Return the first bit of a request's mask among those of the batch."""
    before = zip(problem.q_lens[:request], problem.kv_lens[:request], strict=True)
    return sum(_whole(q_len * kv_len) for q_len, kv_len in before)


def _bits(problem: Problem, places: torch.Tensor) -> torch.Tensor | None:
    """Return bits of the packed masks of a batch, or None if one lies outside of them."""
    assert problem.masks is not None
    pad = torch.nn.functional.pad
    stream = torch.cat([pad(mask.flatten(), (0, -mask.numel() % _BYTE)) for mask in problem.masks])
    inside = not len(places) or (int(places.min()) >= 0 and int(places.max()) < len(stream))
    return stream[places] if inside else None
