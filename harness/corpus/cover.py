"""Which cases reach the most with the fewest runs: greedy set cover over pairs of features."""

import heapq
from collections.abc import Iterable, Sequence

from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case
from attnfuzz.strategies.coverage import Pair, pairs_of


def cover_order(cases: Sequence[Case], reached: Iterable[Pair] = ()) -> list[Case]:
    """The cases that are needed to reach all that `cases` reach beyond `reached`, in the order of what each adds.

    Of two cases that add as much, the smaller one comes first.
    """
    covered = set(reached)
    pairs = [pairs_of(case) for case in cases]
    # What a case adds only shrinks while others are chosen, so the first of the heap that is up to date is the best.
    heap = [
        (-len(own - covered), size_of(case), number)
        for number, (case, own) in enumerate(zip(cases, pairs, strict=True))
    ]
    heapq.heapify(heap)
    order = []
    while heap:
        promised, size, number = heapq.heappop(heap)
        adds = len(pairs[number] - covered)
        if adds == -promised and adds:
            order.append(cases[number])
            covered |= pairs[number]
        elif adds:
            heapq.heappush(heap, (-adds, size, number))
    return order


def size_of(case: Case) -> int:
    """How much there is to read of a case: bytes of its file, which leaves out what is at its default."""
    return len(case_file.encode(case))
