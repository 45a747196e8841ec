"""Claims about a request's length: its last keys are missing, with the causal limit unchanged or moved along."""

from collections.abc import Callable, Iterator

from attnfuzz.harness.judge.explain.claim import Claim
from attnfuzz.harness.judge.explain.key_terms import key_terms
from attnfuzz.harness.judge.explain.keys import MOST_ELEMENTS
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake

_MULTIPLES = (2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of keys in a page or in one load of a kernel."""

Length = Callable[[int], int]
"""A wrong length of a request, from the right one."""


def lengths(row: WrongRow) -> Iterator[Claim]:
    """The request shorter by 1, by its queries, by the best-fitting number of keys, or down to a multiple."""
    for count in sorted({1, row.q_len, *_best_count(row)}):
        keys = f"{count:,} keys" if count > 1 else "key"
        tried = max(len(row.seen), 1)
        # For one key, that equals a causal limit one lower, unless a window moves along.
        if count > 1 or row.problem.window_left >= 0:
            words = f"as if the request were {keys if count > 1 else '1 key'} shorter, for the causal limit too"
            yield Claim(Mistake.LENGTH, words, _of_length(_less(count)), tried=tried)
        words = f"as if the request's last {keys} were missing"
        yield Claim(Mistake.KEYS_MISSING, words, _of_first(_less(count)), tried=tried)
    for multiple in _MULTIPLES:
        words = f"as if the keys past a multiple of {multiple} were missing"
        yield Claim(Mistake.KEYS_MISSING, words, _of_first(_down_to(multiple)), tried=len(_MULTIPLES))


def _best_count(row: WrongRow) -> Iterator[int]:
    if 1 < len(row.seen) <= MOST_ELEMENTS // row.out.shape[0]:
        _, last = key_terms(row).left_without_ends()
        yield len(row.seen) - 1 - int(last[:-1].argmin())


def _less(count: int) -> Length:
    return lambda kv_len: kv_len - count


def _down_to(multiple: int) -> Length:
    return lambda kv_len: kv_len // multiple * multiple


def _of_length(length: Length) -> Callable[[WrongRow], Alternative]:
    """Attend with another length, the last query aligned to the last key."""

    def answer(row: WrongRow) -> Alternative:
        by = length(row.kv_len) - row.kv_len
        start = max(row.seen.start + by, 0) if row.seen.start else 0
        return row.alternative(row.alone(range(start, max(row.seen.stop + by, start))))

    return answer


def _of_first(length: Length) -> Callable[[WrongRow], Alternative | None]:
    """Attend to the first keys alone, mask unchanged; None if there are none."""

    def answer(row: WrongRow) -> Alternative | None:
        start = row.seen.start
        if length(row.kv_len) <= 0:
            return None
        return row.alternative(row.alone(range(start, max(min(row.seen.stop, length(row.kv_len)), start))))

    return answer
