"""Runs of objects that were planned: guests know which keys the arguments of plan and run name together."""

from collections.abc import Mapping
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


class PlannedRuns(Protocol):
    """A guest's planned runs, by op."""

    PLANNED_RUNS: Mapping[str, PlannedEntry]

    def with_plan(self, case: CallCase, index: int) -> CallCase:
        """Return the case with all that a planned run reads among its arguments. Other calls are unchanged.

        Raises ValueError for a run that an answer can't express.
        """


def _guests() -> tuple[PlannedRuns, ...]:
    return tuple(shipped("attnfuzz.planned_runs").values())


def planned_run(op: str) -> PlannedEntry | None:
    """Return the planned run of an op, or None for any other."""
    return next((guest.PLANNED_RUNS[op] for guest in _guests() if op in guest.PLANNED_RUNS), None)


def with_plan(case: CallCase, index: int) -> CallCase:
    """Return the case with all that call `index` reads among its arguments. Raises ValueError as `PlannedRuns` does."""
    for guest in _guests():
        case = guest.with_plan(case, index)
    return case
