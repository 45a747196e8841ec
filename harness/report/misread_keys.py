"""The keys that a failing row skips, counts again, or reads though it must not see them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from attnfuzz.harness.verdict.failures import KeysRead
from attnfuzz.harness.verdict.wording import count

Run = tuple[int, int]
"""A first key, and the one behind the last."""

Misread = tuple[str, str, list[Run]]
"""A CSS class, words in front of the keys, and the keys."""

_MOST_RUNS = 3


def misread_keys(keys: KeysRead, page_size: int) -> list[Misread]:
    """Return each kind of misread keys that there is, with its runs of keys."""
    counts = list(_counted(keys.parts))
    due = [keys.due] if keys.due[1] > keys.due[0] else []
    read = [run for run, _ in counts]
    wrong_page = []
    if keys.page is not None:
        wrong_page = [(keys.page[0] * page_size, (keys.page[0] + 1) * page_size)]
    found = (
        ("read-wrongly", f"reads page {(keys.page or (0, 0))[1]} for", wrong_page),
        ("skipped", "skips", _without(due, read)),
        ("read-again", "counts twice", [run for run, times in counts if times > 1]),
        ("read-wrongly", "reads, but must not see,", _without(read, due)),
    )
    return [each for each in found if each[2]]


def _counted(parts: Iterable[Run]) -> Iterator[tuple[Run, int]]:
    """Yield the runs of keys that the same number of parts contain."""
    edges = Counter[int]()
    for first, end in parts:
        edges[first] += 1
        edges[end] -= 1
    depth, begin = 0, 0
    for edge, change in sorted(edges.items()):
        if depth and edge > begin:
            yield (begin, edge), depth
        depth, begin = depth + change, edge


def _without(runs: Iterable[Run], others: Iterable[Run]) -> list[Run]:
    """Return the parts of `runs` that are in none of `others`."""
    left = list(runs)
    for first, end in others:
        left = [part for run in left for part in ((run[0], min(run[1], first)), (max(run[0], end), run[1]))]
        left = [(begin, stop) for begin, stop in left if stop > begin]
    return left


def in_words(names: Sequence[str]) -> str:
    """Return names in one line: the first few, and the number of the others."""
    more = len(names) - _MOST_RUNS
    return ", ".join(names[:_MOST_RUNS]) + (f" and {count(more, 'more run')} of keys" if more > 0 else "")
