"""Whose turn it is: time is shared by yield, and everybody gets a floor."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FLOOR = 0.5
"""The part of an even share that each gets, whatever it yields."""

MEMORY = 0.7
"""What the slices before the last one weigh beside it: a yield is that of the last few slices."""

NEGLIGIBLE = 0.1
"""A gain per second that everybody is taken to have on top, so that where hardly anything is found, shares are even."""

GUESSED_SECONDS = 1.0
"""What a slice is taken to cost as long as none has ended."""


@dataclass
class _Account:
    """What one name has used: `clock` runs the faster, the smaller its share is; whose clock is behind comes next."""

    clock: float = 0.0
    seconds: float = 0.0
    gain: float = 0.0
    slices: float = 0.0

    @property
    def rate(self) -> float:
        return NEGLIGIBLE + (self.gain / self.seconds if self.seconds else 0.0)

    @property
    def cost(self) -> float:
        return self.seconds / self.slices if self.slices else GUESSED_SECONDS


class Turns:
    """Shares time among `names`: each gets `FLOOR` of an even share, and what is left goes by gain per second.

    It follows from what it was told alone, so that a campaign that goes on makes the same choices.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._accounts = {name: _Account() for name in names}

    def spent(self, name: str, seconds: float, *, gain: float) -> None:
        """A slice of `name` ended: it took so long and was worth so much."""
        share = self.shares()[name]
        account = self._accounts[name]
        account.clock += seconds / share
        account.seconds = MEMORY * account.seconds + seconds
        account.gain = MEMORY * account.gain + gain
        account.slices = MEMORY * account.slices + 1

    def next(self, ready: Iterable[str], under_way: Sequence[str] = ()) -> str | None:
        """Which of `ready` comes next, the first on a tie; None if there is none. `under_way` run now."""
        shares = self.shares()

        def clock(name: str) -> float:
            account = self._accounts[name]
            return account.clock + under_way.count(name) * account.cost / shares[name]

        return min(ready, key=clock, default=None)

    def shares(self) -> dict[str, float]:
        """Each name's share of the time from now on; together 1."""
        rates = {name: account.rate for name, account in self._accounts.items()}
        even, total = 1 / len(rates), sum(rates.values())
        return {name: FLOOR * even + (1 - FLOOR) * rate / total for name, rate in rates.items()}
