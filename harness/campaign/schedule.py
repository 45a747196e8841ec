"""Which slice comes next: the backends take turns until the budget is spent."""

from collections import deque
from collections.abc import Sequence

from attnfuzz.harness.campaign.examples import derive_seed
from attnfuzz.harness.campaign.messages import Slice

EXAMPLES_PER_SLICE = 250


class Schedule:
    """Hands out the slices of a campaign; with `examples`, so many for each backend, otherwise without end.

    Slices are numbered for each backend, and a slice's seed follows from the campaign's seed, backend and number.
    """

    def __init__(self, backends: Sequence[str], *, examples: int | None, seed: int) -> None:
        self._turns = deque(backends)
        self._left = dict.fromkeys(backends, examples)
        self._handed_out = dict.fromkeys(backends, 0)
        self._seed = seed

    def next_slice(self) -> Slice | None:
        """The next slice; None when no examples are left to hand out."""
        for _ in range(len(self._turns)):
            backend = self._turns[0]
            self._turns.rotate(-1)
            left = self._left[backend]
            examples = EXAMPLES_PER_SLICE if left is None else min(EXAMPLES_PER_SLICE, left)
            if examples:
                return self._hand_out(backend, examples)
        return None

    def give_back(self, backend: str, examples: int) -> None:
        """Examples of a slice that ended early, to be handed out again."""
        left = self._left[backend]
        if left is not None:
            self._left[backend] = left + examples

    def _hand_out(self, backend: str, examples: int) -> Slice:
        index = self._handed_out[backend]
        self._handed_out[backend] += 1
        self.give_back(backend, -examples)
        return Slice(backend=backend, index=index, seed=derive_seed(self._seed, backend, index), examples=examples)
