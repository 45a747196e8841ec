"""Runs of objects that were planned: guests know which keys the arguments of plan and run name together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from attnfuzz.kernels.interface.guests import shipped
from attnfuzz.kernels.meaning import Breach, Parameter, RequestSpan
from attnfuzz.reference.calls import CallCase


class PlannedEntry(Protocol):
    """The run of one class, whose arguments are those of the plan too. Methods are like those of an `EntryPoint`."""

    def parameters(self, arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the tensors of plan and run. Raises ValueError for impossible ones."""

    def spans(self, arguments: Mapping[str, Any]) -> tuple[RequestSpan, ...]:
        """Return the requests that were planned."""

    def mask(self, arguments: Mapping[str, Any]) -> torch.Tensor | None:
        """Return the keys that each query of the only request sees, bool [queries, keys]; None if it has no mask."""

    def breaches(self, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
        """Return the preconditions that plan and run break, such as a page id outside of the pool."""

    def leaves_empty_rows(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a run leaves the rows of requests without keys unwritten."""


@dataclass(frozen=True)
class PlannedPart:
    """One part of a planned run, with results of its own: `case` has all that it reads among the call's arguments."""

    case: CallCase
    entry: PlannedEntry


class PlannedRuns(Protocol):
    """A guest's planned runs."""

    def planned_parts(self, case: CallCase, index: int) -> tuple[PlannedPart, ...]:
        """Return the parts of a call that runs a plan, () for any other.

        Raises ValueError for a run that an answer can't express.
        """


def planned_parts(case: CallCase, index: int) -> tuple[PlannedPart, ...]:
    """Return the parts of call `index` by the guest whose planned run it is, () for any other call.

    Raises ValueError as `PlannedRuns` does.
    """
    guests: Iterable[PlannedRuns] = shipped("attnfuzz.planned_runs").values()
    return next(filter(None, (guest.planned_parts(case, index) for guest in guests)), ())
