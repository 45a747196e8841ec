"""Ranks of a server in one process: threads that run one at a time, and switch at collectives.

Each rank has its own values of the variables that are global to a process.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")


@dataclass(frozen=True)
class Variable:
    """A variable of a module."""

    module: Any
    name: str

    def swap(self, value: Any) -> Any:
        """Set the variable. Returns its previous value."""
        before = getattr(self.module, self.name)
        setattr(self.module, self.name, value)
        return before


class _Ended(BaseException):
    """Raised in a rank's thread when another rank has failed."""


class RankThreads:
    """`number` ranks that take turns, each with its own values of `variables`.

    At each collective, a rank yields until all others have reached it. It is an error if one of them ends first, or
    reaches another collective: the processes of a server would deadlock.
    """

    def __init__(self, number: int, variables: Sequence[Variable]) -> None:
        self.number = number
        self._variables = variables
        self._values = [[getattr(each.module, each.name) for each in variables] for _ in range(number)]
        self._thread = threading.local()
        self._turns = [threading.Semaphore(0) for _ in range(number)]
        self._running: list[int] = []
        self._given: list[list[tuple[str, torch.Tensor]]] = []
        self._error: BaseException | None = None

    @property
    def rank(self) -> int:
        """The running rank."""
        rank: int = self._thread.rank
        return rank

    @contextmanager
    def alone(self, rank: int) -> Iterator[None]:
        """Run the body as a rank, without collectives."""
        self._thread.rank = rank
        self._swap(rank)
        try:
            yield
        finally:
            self._swap(rank)

    def run(self, works: Sequence[Callable[[], _T]], context: Callable[[], AbstractContextManager[object]]) -> list[_T]:
        """Run the work of each rank in `context`, which is entered in each thread. Returns their results in order."""
        self._running, self._given = list(range(self.number)), [[] for _ in works]
        self._error = None
        results: dict[int, _T] = {}

        def thread(rank: int) -> None:
            self._turns[rank].acquire()
            try:
                if self._error is None:
                    with self.alone(rank), context():
                        results[rank] = works[rank]()
            except _Ended:
                pass
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                self._error = self._error or error
            finally:
                following = self._following(rank)
                self._running.remove(rank)
                if self._running:
                    self._turns[following].release()

        threads = [threading.Thread(target=thread, args=(rank,), daemon=True) for rank in range(self.number)]
        for each in threads:
            each.start()
        self._turns[0].release()
        for each in threads:
            each.join()
        if self._error is not None:
            raise self._error
        return [results[rank] for rank in range(self.number)]

    def exchange(self, collective: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks in a collective. Raises RuntimeError if a rank calls another one, or ends."""
        rank = self.rank
        mine, index = self._given[rank], len(self._given[rank])
        mine.append((collective, tensor.clone()))
        self._swap(rank)
        self._turns[self._following(rank)].release()
        self._turns[rank].acquire()
        self._swap(rank)
        if self._error is not None:
            raise _Ended
        for other, given in enumerate(self._given):
            if len(given) <= index:
                raise RuntimeError(f"rank {rank} waits in {_words(*mine[index])}, and rank {other} has ended its step")
            if _words(*given[index]) != _words(*mine[index]):
                raise RuntimeError(
                    f"rank {rank} waits in {_words(*mine[index])}, and rank {other} in {_words(*given[index])}"
                )
        return [given[index][1] for given in self._given]

    def _following(self, rank: int) -> int:
        """Return the next rank after `rank` that has not ended."""
        return self._running[(self._running.index(rank) + 1) % len(self._running)]

    def _swap(self, rank: int) -> None:
        """Swap the values of the variables with those stored for a rank."""
        self._values[rank] = [each.swap(value) for each, value in zip(self._variables, self._values[rank], strict=True)]


def _words(collective: str, tensor: torch.Tensor) -> str:
    return f"{collective} of {tensor.dtype} {list(tensor.shape)}"
