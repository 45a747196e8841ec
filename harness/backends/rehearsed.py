"""A user's backend in a process that must live on: it answers from a description, and never runs the user's code."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from attnfuzz.harness.backends.description import DescribedOp, Description
from attnfuzz.harness.backends.load import BackendSource
from attnfuzz.kernels.backend import Bench, Op
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel

_OUR_KERNELS = "attnfuzz.kernels."


@dataclass(frozen=True)
class _Elsewhere:
    """A function of the user's, which only workers have. Two are equal if they have the same name."""

    function: str

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        raise RuntimeError(f"{self.function} is a user's function: only workers run it")


@dataclass(frozen=True)
class Rehearsed:
    """The backend of `source`, as it described itself. `preparation` runs its `prepare` in a process that may die."""

    source: BackendSource
    description: Description
    preparation: Callable[[BackendSource], None]

    @property
    def name(self) -> str:
        """Its own name, which is not the one that users give."""
        return self.description.name

    @property
    def capability(self) -> Capability:
        """What it supports."""
        return self.description.capability

    @property
    def contract(self) -> Contract:
        """What it promises."""
        return self.description.contract

    def noise(self, dtype: DType) -> NoiseModel:
        """The error of a correct run, for a dtype that it supports."""
        return self.description.noise[dtype]

    @property
    def ops(self) -> Mapping[str, Op]:
        """Its kernels by name. Functions of this project are themselves, all others only have a name."""
        return {name: _op(name, op) for name, op in self.description.ops.items()}

    def missing(self) -> str | None:
        """Why this machine can't run it."""
        return self.description.missing

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Have it prepare itself in a process that may die. Raises BackendFileError."""
        del progress
        if self.description.prepares:
            self.preparation(self.source)

    def open(self, case: Case, bench: Bench) -> NoReturn:
        """Refuse: sessions run the user's code."""
        del case, bench
        raise RuntimeError(f"{self.source.name} is a user's backend: only workers open sessions on it")


def _op(name: str, op: DescribedOp) -> Op:
    return Op(name=name, function=_function(op.function), writes=op.writes, module=op.module, own=op.own)


def _function(name: str) -> Callable[..., Any]:
    module, _, qualified = name.partition(":")
    found: Any = importlib.import_module(module) if module.startswith(_OUR_KERNELS) else None
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else _Elsewhere(name)
