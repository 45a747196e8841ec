"""What a backend is: the types between the harness, which places and judges, and what is under test.

A backend says what it supports, declares its contract, and opens a session on a case. The session is handed a Bench:
memory to allocate from and a way to launch kernels, both the harness's. It never allocates elsewhere what a kernel
reads or writes, and never calls a kernel by itself, so that every access is guarded and every launch is on record.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import torch

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel


class Unsupported(Exception):
    """A clear rejection before the launch: the kernel does not do this, and says so."""


class Fill(StrEnum):
    """What a new tensor holds: OUTPUT is the case's choice of sentinel or stale numbers, POISON must not be read."""

    POISON = "poison"
    ZEROS = "zeros"
    OUTPUT = "output"


class Memory(Protocol):
    """Guarded memory: each tensor has its own allocation, flush with an unmapped page."""

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        stride: Sequence[int] | None = None,
        fill: Fill = Fill.POISON,
    ) -> torch.Tensor:
        """A tensor called `name`. `stride` (in elements) may leave gaps: they stay poison and belong to nobody."""
        ...

    def copy(self, name: str, value: torch.Tensor, *, stride: Sequence[int] | None = None) -> torch.Tensor:
        """A guarded tensor with the values, shape and dtype of `value`."""
        ...

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor`, which has elements, lies in this memory."""
        ...

    def renew(self, tensor: torch.Tensor) -> None:
        """Before a static output is written again: its sentinel, or nothing where the case wants stale numbers."""
        ...


@dataclass(frozen=True)
class Op:
    """One kernel entry point: `function` takes the arguments of FlashInfer's function of that `name`.

    `writes` names the arguments that it may write; all others must come out unchanged, bit for bit. `module` is the
    FlashInfer module that has the function, None for what only this project has. One that is `own` is code of the
    backend itself: its faults are on record like any other's, but no trace has its calls, only what they wrote.
    """

    name: str
    function: Callable[..., Any]
    writes: frozenset[str]
    module: str | None = None
    own: bool = False


class Graph(Protocol):
    """A recorded sequence of launches."""

    def replay(self) -> None:
        """Run the launches again, with the scalars of the capture and what the tensors hold now."""
        ...


class Launcher(Protocol):
    """The only way to a kernel. Writes the journal, launches, and checks that inputs are unchanged.

    On a GPU a launch may not be over when it returns: its harness waits for all of a step.
    """

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """Call `op`. While a graph captures, the call is recorded and not run, and None is returned."""
        ...

    def reached_by(self, words: str) -> None:
        """Say how a server comes to make the launches that follow in this step, for the text of what fails in it."""
        ...

    def report(self, place: str, text: str) -> None:
        """Say that the next launch breaks what its function asks for: in the arguments `place`, as `text` says."""
        ...

    def capture(self) -> AbstractContextManager[Graph]:
        """Record every launch inside the `with` block; the graph can be replayed after it."""
        ...

    def capture_all(self) -> AbstractContextManager[Graph]:
        """Capture all that the `with` block does on a GPU, launches and torch's own operations."""
        ...


@dataclass(frozen=True)
class Bench:
    """What a session works with."""

    memory: Memory
    launcher: Launcher
    device: torch.device


@dataclass(frozen=True)
class Attended:
    """What one request's queries attend to: the truth, from which the reference answers.

    query [q_len, q_heads, head_dim_qk] as the kernel was given it; key [kv_len, kv_heads, head_dim_qk] and value
    [kv_len, kv_heads, head_dim_vo] in the KV cache's dtype. `first_row` is the output row of the first query.
    """

    first_row: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True)
class Output:
    """What a step gave: out [rows, q_heads, head_dim_vo], lse [rows, q_heads] float32 or None.

    `attended` has an entry for each real request, in order; every other row is padding. `bmm1_scale` multiplies the
    logits and `bmm2_scale` the output, as the backend was asked to. `roundings` counts how often a value was rounded
    to the output's dtype on its way (once, plus once per merge).
    """

    out: torch.Tensor
    lse: torch.Tensor | None
    attended: tuple[Attended, ...]
    bmm1_scale: float
    bmm2_scale: float
    roundings: int = 1
    sinks: torch.Tensor | None = None


class Session(Protocol):
    """A backend at work on one case."""

    def forward(self, index: int) -> Output | None:
        """Run step `index` of the case; None for a capture, which computes nothing."""
        ...


class Backend(Protocol):
    """Something that computes attention."""

    @property
    def name(self) -> str:
        """The name that users give, like trtllm_mha@21649-before."""
        ...

    @property
    def capability(self) -> Capability:
        """What it supports."""
        ...

    @property
    def contract(self) -> Contract:
        """What it promises."""
        ...

    def noise(self, dtype: DType) -> NoiseModel:
        """The error of a correct run on queries of `dtype`; NoiseModel.unknown_kernel() is a safe answer."""
        ...

    @property
    def ops(self) -> Mapping[str, Op]:
        """Its kernels by name, so that a case made of literal calls can be run."""
        ...

    def missing(self) -> str | None:
        """Why this machine can't run it (no compiler, no GPU), as one line that says what to do; None if it can."""
        ...

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile or load what every session needs, telling `progress` what takes long. Called before any session."""
        ...

    def open(self, case: Case, bench: Bench) -> Session:
        """A session on a case that `capability` covers."""
        ...
