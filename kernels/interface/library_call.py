"""Calls of a library as data: its functions, the classes whose objects are planned and run, and their methods.

Launches and scripts are made of the same data, so that a script makes the calls that were launched.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import torch

OBJECT: Final = "wrapper"
"""A launch's name for the object that it is a call on."""

HELD: Final = "held"
"""A launch's name for the set of its arguments that the object already has: they are recorded, not passed."""

OWN_INTEGERS: Final = r"_?int_workspace_buffer(_[pd])?"
"""Attributes with the workspaces of integers that FlashInfer's objects and their parts allocate by torch.empty."""

PLANS: Final = frozenset({"plan", "begin_forward"})
"""Methods that plan, for the runs that follow."""

OUTPUTS: Final = frozenset({"out", "lse", "out_p", "out_d", "lse_p", "lse_d"})
"""Arguments that hold the results of a run."""

COMPILES: Final = frozenset({"jit_args", "jit_kwargs"})
"""Arguments of constructors with source code, which no case has."""


class Action(StrEnum):
    """The action of a call: it calls a function or a method, makes or copies an object, or fills workspaces of one."""

    FUNCTION = "function"
    METHOD = "method"
    MAKE = "make"
    COPY = "copy"
    FILL = "fill"


@dataclass(frozen=True)
class OnHost:
    """A tensor in the host's memory, which is passed to a call: no kernel reads it, so it is not guarded."""

    tensor: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """An argument `name` that `maker`, a function of the library's module, makes of the arguments `parts`."""

    name: str
    maker: str
    parts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LibraryCall:
    """One function `name` of `module`, or one class of it and a `method` of its objects.

    `positional` are arguments that are passed by position, in this order, and `constant` those that every call has.
    The results are copied, in order, to the arguments `results`, which are not passed. FILL overwrites the attributes
    that match `filled`. An exception of the type `refusal` means that the library does not support the call.
    """

    action: Action
    module: str
    name: str
    method: str = ""
    positional: tuple[str, ...] = ()
    constant: tuple[tuple[str, Any], ...] = ()
    results: tuple[str, ...] = ()
    gathered: Gathered | None = None
    filled: str = OWN_INTEGERS
    refusal: str = ""

    @property
    def op_name(self) -> str:
        """The name of its op."""
        return f"{self.name}.{self.method}" if self.takes_object else self.name

    @property
    def makes(self) -> bool:
        """Whether its result is a new object."""
        return self.action in (Action.MAKE, Action.COPY)

    @property
    def takes_object(self) -> bool:
        """Whether it is a call on an object."""
        return self.action not in (Action.FUNCTION, Action.MAKE)
