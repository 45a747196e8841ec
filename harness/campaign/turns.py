"""Turns of backends: time is shared by yield, with a minimum for each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FLOOR = 0.5
"""Share of an even share that each gets, whatever its yield."""

MEMORY = 0.7
"""Weight of earlier slices relative to the last: a yield covers the last few slices."""

NEGLIGIBLE = 0.1
"""Gain per second added to each rate, so that shares are even when hardly anything is found."""

GUESSED_SECONDS = 1.0
"""Assumed cost of a slice before any has ended."""

Running = tuple[str, float]
"""A name with a running slice, and the slice's seconds so far."""


@dataclass
class _Account:
    """The time of one name: `clock` runs faster for a smaller share; the name with the slowest clock comes next.

    `used` is all of its time; `seconds`, `gain` and `slices` decay.
    """

    clock: float = 0.0
    used: float = 0.0
    seconds: float = 0.0
    gain: float = 0.0
    slices: float = 0.0

    @property
    def rate(self) -> float | None:
        return NEGLIGIBLE + self.gain / self.seconds if self.seconds else None

    @property
    def usual(self) -> float | None:
        """The average cost of a slice."""
        return self.seconds / self.slices if self.slices else None


class Turns:
    """Shares time among `names`: each gets `FLOOR` of an even share, and the rest depends on gain per second.

    It is deterministic, so that a resumed campaign makes the same choices.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._accounts = {name: _Account() for name in names}

    def spent(self, name: str, seconds: float, *, gain: float) -> None:
        """Count a finished slice of `name`, its seconds and gain."""
        share = self.shares()[name]
        account = self._accounts[name]
        account.clock += seconds / share
        account.used += seconds
        account.seconds = MEMORY * account.seconds + seconds
        account.gain = MEMORY * account.gain + gain
        account.slices = MEMORY * account.slices + 1

    def next(self, ready: Iterable[str], under_way: Sequence[Running] = ()) -> str | None:
        """Return the next of `ready`, the first on a tie, or None if it is empty. `under_way` are running."""
        shares, costs = self.shares(), self._costs(under_way)
        return min(
            ready, key=lambda name: self._accounts[name].clock + costs.get(name, 0.0) / shares[name], default=None
        )

    def short(self, under_way: Sequence[Running] = ()) -> dict[str, tuple[float, float]]:
        """Return the names that got less time than the floor, with running slices: their seconds, and the floor."""
        costs = self._costs(under_way)
        used = {name: account.used + costs.get(name, 0.0) for name, account in self._accounts.items()}
        floor = FLOOR * sum(used.values()) / len(used)
        return {name: (seconds, floor) for name, seconds in used.items() if seconds < floor}

    def shares(self) -> dict[str, float]:
        """Return each name's share of the time from now on. They add up to 1."""
        known = [account.rate for account in self._accounts.values() if account.rate is not None]
        # Names without a slice are assumed to yield like the others, or the first would be repeated.
        usual = sum(known) / len(known) if known else NEGLIGIBLE
        rates = {name: usual if account.rate is None else account.rate for name, account in self._accounts.items()}
        even, total = 1 / len(rates), sum(rates.values())
        return {name: FLOOR * even + (1 - FLOOR) * rate / total for name, rate in rates.items()}

    def _costs(self, under_way: Iterable[Running]) -> dict[str, float]:
        """Return the expected costs of each name's running slices: the average, or the time so far of a slow slice."""
        known = [account.usual for account in self._accounts.values() if account.usual is not None]
        # The first slices of a name are assumed to take as long as those of others. If they were assumed to be short,
        # several jobs at once would search it, and shrink the same failures.
        guess = sum(known) / len(known) if known else GUESSED_SECONDS
        usual = {name: guess if account.usual is None else account.usual for name, account in self._accounts.items()}
        costs = dict.fromkeys(usual, 0.0)
        for name, so_far in under_way:
            costs[name] += max(so_far, usual[name])
        return costs
