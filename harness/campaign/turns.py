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

Running = tuple[str, float]
"""A name that has a slice now, and since how many seconds."""


@dataclass
class _Account:
    """What one name has used: `clock` runs the faster, the smaller its share is; whose clock is behind comes next.

    `used` is all of its time; `seconds`, `gain` and `slices` forget.
    """

    clock: float = 0.0
    used: float = 0.0
    seconds: float = 0.0
    gain: float = 0.0
    slices: float = 0.0

    @property
    def rate(self) -> float | None:
        return NEGLIGIBLE + self.gain / self.seconds if self.seconds else None

    def cost(self, so_far: float) -> float:
        """What a slice will have cost that has taken `so_far`: one that is slow is not taken for an average one."""
        return max(so_far, self.seconds / self.slices if self.slices else GUESSED_SECONDS)


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
        account.used += seconds
        account.seconds = MEMORY * account.seconds + seconds
        account.gain = MEMORY * account.gain + gain
        account.slices = MEMORY * account.slices + 1

    def next(self, ready: Iterable[str], under_way: Sequence[Running] = ()) -> str | None:
        """Which of `ready` comes next, the first on a tie; None if there is none. `under_way` run now."""
        shares, costs = self.shares(), self._costs(under_way)
        return min(
            ready, key=lambda name: self._accounts[name].clock + costs.get(name, 0.0) / shares[name], default=None
        )

    def owes(self, under_way: Sequence[Running] = ()) -> bool:
        """Whether somebody had less of the time so far than the floor, also with what runs now."""
        costs = self._costs(under_way)
        used = [account.used + costs.get(name, 0.0) for name, account in self._accounts.items()]
        return min(used) < FLOOR * sum(used) / len(used)

    def short(self) -> dict[str, tuple[float, float]]:
        """Those that had less than the floor of the time that was used: the seconds that they had, and the floor."""
        used = {name: account.used for name, account in self._accounts.items()}
        floor = FLOOR * sum(used.values()) / len(used)
        return {name: (seconds, floor) for name, seconds in used.items() if seconds < floor}

    def shares(self) -> dict[str, float]:
        """Each name's share of the time from now on; together 1."""
        known = [account.rate for account in self._accounts.values() if account.rate is not None]
        # Who had no slice yet is taken to yield as the others do, or those who began would go on.
        usual = sum(known) / len(known) if known else NEGLIGIBLE
        rates = {name: usual if account.rate is None else account.rate for name, account in self._accounts.items()}
        even, total = 1 / len(rates), sum(rates.values())
        return {name: FLOOR * even + (1 - FLOOR) * rate / total for name, rate in rates.items()}

    def _costs(self, under_way: Iterable[Running]) -> dict[str, float]:
        """What the slices of each name that run now will have cost."""
        costs: dict[str, float] = {}
        for name, so_far in under_way:
            costs[name] = costs.get(name, 0.0) + self._accounts[name].cost(so_far)
        return costs
