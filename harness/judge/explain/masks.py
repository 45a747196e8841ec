"""Claims about the mask or the length of a request, as rules that give any row its visible keys."""

from collections.abc import Callable, Iterator

from attnfuzz.harness.judge.explain.claim import Claim
from attnfuzz.harness.judge.explain.custom_masks import custom_masks
from attnfuzz.harness.judge.explain.key_terms import key_terms
from attnfuzz.harness.judge.explain.keys import MOST_ELEMENTS
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake

_TILES = (8, 16, 32, 64, 128)
"""Numbers of keys that kernels mask or skip at once."""

_MULTIPLES = (2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of keys in a page or in one load of a kernel."""

Keys = Callable[[WrongRow], range | None]
"""Returns the keys of its request that a row sees under a wrong mask, or None where that has no answer."""


def masks(row: WrongRow) -> Iterator[Claim]:
    """Yield claims that the causal limit or the window is off by one, ignored, misaligned, or another row's."""
    if row.problem.causal:
        yield from _causal_limits(row)
    yield from custom_masks(row)
    if row.problem.window_left >= 0:
        yield from _windows(row)
    elif row.problem.causal:
        words = "as if the row saw its own key alone: a window of 0 keys, where there is none (-1)"
        yield _claim(Mistake.WINDOW, words, lambda each: _from(each, each.seen.stop - 1))


def _causal_limits(row: WrongRow) -> Iterator[Claim]:
    own_lower = "as if the causal limit were one lower: the row's own key is not seen"
    yield _claim(Mistake.CAUSAL_LIMIT, own_lower, lambda each: _cut(each, stop=each.seen.stop - 1))
    higher = "as if the causal limit were one higher: the next key is seen"
    yield _claim(Mistake.CAUSAL_LIMIT, higher, lambda each: _cut(each, stop=each.seen.stop + 1))
    none = "as if there were no causal limit: all later keys are seen"
    yield _claim(Mistake.CAUSAL_LIMIT, none, lambda each: _cut(each, stop=each.kv_len))
    aligned = "as if the causal mask aligned the first query to the first key, and not the last to the last"
    yield _claim(Mistake.CAUSAL_ALIGNMENT, aligned, lambda each: _cut(each, stop=each.token_in_request + 1))
    if row.problem.q_lens[row.request] > 1:
        first = "as if the row saw the keys of its request's first query"
        yield _claim(Mistake.MASK_OF_ANOTHER_ROW, first, lambda each: each.seen_by(0))
        last = "as if the row saw the keys of its request's last query"
        yield _claim(Mistake.MASK_OF_ANOTHER_ROW, last, lambda each: each.seen_by(each.q_len - 1))


def _windows(row: WrongRow) -> Iterator[Claim]:
    narrower = "as if the window were one key narrower"
    yield _claim(Mistake.WINDOW, narrower, lambda each: _from(each, max(each.window_start + 1, each.seen.start)))
    wider = "as if the window were one key wider"
    yield _claim(Mistake.WINDOW, wider, lambda each: _from(each, each.window_start - 1))
    yield _claim(Mistake.WINDOW, "as if the window were ignored", lambda each: _from(each, 0))
    if row.problem.q_lens[row.request] > 1:
        first = "as if the row's window began where that of its request's first query does"
        yield _claim(Mistake.WINDOW, first, lambda each: _from(each, each.seen_by(0).start))
    for tile in _TILES:
        words = f"as if the window began at a multiple of {tile} keys"
        yield _claim(Mistake.WINDOW, words, _from_tile(tile))


def lengths(row: WrongRow) -> Iterator[Claim]:
    """Yield claims that the request is shorter: by 1, its queries, the best-fitting number, or down to a multiple."""
    tried = max(len(row.seen), 1)
    for count in sorted({1, row.q_len, *_best_count(row)}):
        keys = f"{count:,} keys" if count > 1 else "key"
        # For one key, that equals a causal limit one lower, unless a window moves with it.
        if row.problem.causal and (count > 1 or row.problem.window_left >= 0):
            words = f"as if the request were {keys if count > 1 else '1 key'} shorter, for the causal limit too"
            yield _claim(Mistake.LENGTH, words, _moved(-count), tried)
        words = f"as if the request's last {keys} were missing"
        yield _claim(Mistake.KEYS_MISSING, words, _first(_less(count)), tried)
    for multiple in _MULTIPLES:
        words = f"as if the keys past a multiple of {multiple} were missing"
        yield _claim(Mistake.KEYS_MISSING, words, _first(_down_to(multiple)), len(_MULTIPLES))


def _best_count(row: WrongRow) -> Iterator[int]:
    if 1 < len(row.seen) <= MOST_ELEMENTS // row.out.shape[0]:
        _, last = key_terms(row).left_without_ends()
        yield len(row.seen) - 1 - int(last[:-1].argmin())


def _claim(mistake: Mistake, words: str, keys: Keys, tried: int = 1) -> Claim:
    def answer(row: WrongRow) -> Alternative | None:
        seen = keys(row)
        return None if seen is None else row.reading(seen)

    return Claim(mistake, words, answer, tried=tried)


def _cut(row: WrongRow, stop: int) -> range:
    return range(row.seen.start, max(min(stop, row.kv_len), row.seen.start))


def _from(row: WrongRow, start: int) -> range:
    start = max(start, 0)
    return range(start, max(row.seen.stop, start))


def _from_tile(tile: int) -> Keys:
    return lambda row: _from(row, row.seen.start // tile * tile)


def _moved(by: int) -> Keys:
    """Return the keys in a request of another length, whose last query is aligned to the last key."""

    def keys(row: WrongRow) -> range:
        start = max(row.seen.start + by, 0) if row.seen.start else 0
        return range(start, max(row.seen.stop + by, start))

    return keys


def _first(length: Callable[[int], int]) -> Keys:
    """Return the keys below a length, with the mask unchanged, or None if there are none."""

    def keys(row: WrongRow) -> range | None:
        start, most = row.seen.start, length(row.kv_len)
        return range(start, max(min(row.seen.stop, most), start)) if most > 0 else None

    return keys


def _less(count: int) -> Callable[[int], int]:
    return lambda kv_len: kv_len - count


def _down_to(multiple: int) -> Callable[[int], int]:
    return lambda kv_len: kv_len // multiple * multiple
