"""Lists of keys: those that are right for a row of scores, and the keys that entries name.

Scores are ordered like torch.topk's: NaN is above all numbers, and both zeros are equal.
"""

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Selection:
    """The scores that a top-k of one step selects from: row r has `lengths[r]` scores from column `starts[r]` on.

    scores float32 [rows, width] as the kernel read them. A list of `top_k` entries names position p by `names[r][p]`,
    or by p itself if `names` is None. Lists are in any order, with -1 behind the entries. If the kernel's own scores
    are not known, they are between `scores` and `highest`.
    """

    scores: torch.Tensor
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    top_k: int
    names: tuple[torch.Tensor, ...] | None = None
    highest: torch.Tensor | None = None

    def of_row(self, row: int) -> torch.Tensor:
        """Return the scores of a row, in positions."""
        return self._of_row(self.scores, row)

    def _of_row(self, scores: torch.Tensor, row: int) -> torch.Tensor:
        start = self.starts[row]
        return scores[row, start : start + self.lengths[row]]

    @cached_property
    def right(self) -> torch.Tensor:
        """One right list for each row, int32 [rows, top_k], the highest score first."""
        lists = torch.full((len(self.starts), self.top_k), -1, dtype=torch.int32)
        for row in range(len(self.starts)):
            count = min(self.top_k, self.lengths[row])
            chosen = torch.topk(self.of_row(row), count).indices
            lists[row, :count] = (chosen if self.names is None else self.names[row][chosen]).int()
        return lists

    def names_of(self, row: int) -> torch.Tensor | None:
        """Return the names of a row's positions, None if they are named by themselves."""
        return None if self.names is None else self.names[row][: self.lengths[row]]

    def mistake(self, row: int, entries: torch.Tensor) -> str:
        """Return the first mistake in the list of a row [top_k], or "" if it is right."""
        highest = None if self.highest is None else self._of_row(self.highest, row)
        return mistake_of_list(entries, self.of_row(row), self.names_of(row), highest)


def mistake_of_list(
    entries: torch.Tensor,
    scores: torch.Tensor,
    names: torch.Tensor | None = None,
    highest: torch.Tensor | None = None,
) -> str:
    """Return the first mistake in a list [k] of the highest of some scores float32 [n], or "" if it is right.

    Its entries are positions of scores, or their names int [n], in any order, with -1 behind them if k exceeds n. With
    `highest`, `scores` are lower bounds, and these upper ones.
    """
    length = len(scores)
    count = min(len(entries), length)
    rest = entries[count:]
    if rest.numel() and not bool((rest == -1).all()):
        at = count + int((rest != -1).nonzero()[0])
        return f"entry {at} is {int(entries[at])}, and not -1: the row has {length} keys for a list of {len(entries)}"
    positions = _positions(entries[:count], names)
    outside = (positions < 0) | (positions >= length)
    if bool(outside.any()):
        at = int(outside.nonzero()[0])
        return f"entry {at} is {int(entries[at])}, which is no key of the row, of {length}"
    chosen = torch.zeros(length, dtype=torch.bool)
    chosen[positions] = True
    if int(chosen.sum()) < count:
        values, counts = positions.unique(return_counts=True)
        return f"position {int(values[counts > 1][0])} is listed {int(counts.max())} times"
    return "" if count == length else _unchosen(scores, scores if highest is None else highest, chosen)


def _positions(entries: torch.Tensor, names: torch.Tensor | None) -> torch.Tensor:
    """Return the positions that entries name, -1 for those that name none."""
    if names is None:
        return entries.long()
    by_name = {int(name): position for position, name in enumerate(names.tolist())}
    return torch.tensor([by_name.get(int(entry), -1) for entry in entries.tolist()], dtype=torch.int64)


def _unchosen(scores: torch.Tensor, bounds: torch.Tensor, chosen: torch.Tensor) -> str:
    """Return a score that is higher than the bound of a chosen one and not chosen itself, or ""."""
    low, high = _ordered(scores), _ordered(bounds)
    lowest = int(torch.where(chosen, high, _ABOVE_ALL).argmin())
    highest = int(torch.where(chosen, -_ABOVE_ALL, low).argmax())
    if low[highest] > high[lowest]:
        return (
            f"position {highest} has a score of {float(scores[highest]):.9g} and is left out, but position "
            f"{lowest} with {float(scores[lowest]):.9g} is listed"
        )
    return ""


_OF_NAN = 1 << 40
_ABOVE_ALL = 1 << 41


def _ordered(scores: torch.Tensor) -> torch.Tensor:
    """Return integers in the order of float32 scores."""
    bits = (scores + 0.0).view(torch.int32).long()
    return torch.where(scores.isnan(), _OF_NAN, torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits))


def to_slots(positions: torch.Tensor, tables: tuple[torch.Tensor, ...], page_size: int) -> torch.Tensor:
    """Return the slots of positions int [rows, k]; `tables` has each row's page ids. -1 stays."""
    slots = torch.full_like(positions, -1)
    for row, table in enumerate(tables):
        real = positions[row] >= 0
        at = positions[row][real].long()
        slots[row][real] = (table[at // page_size].long() * page_size + at % page_size).to(slots.dtype)
    return slots


def to_offsets(positions: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return positions int [rows, k] plus the offset of their row [rows]. -1 stays."""
    return torch.where(positions < 0, positions, positions + offsets.unsqueeze(-1).to(positions.dtype))


def attended(entries: torch.Tensor, slots: int, count: int | None) -> torch.Tensor:
    """Return the entries of a list [k] that name keys, int64: those below `count`, from 0 to below `slots`."""
    listed = (entries if count is None else entries[:count]).long()
    return listed[(listed >= 0) & (listed < slots)]
