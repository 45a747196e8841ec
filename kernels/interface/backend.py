"""The interface between the harness, which places tensors and judges outputs, and the backends under test.

A backend states its capability and its contract, and opens a session on a case. The session gets a Bench: the harness's
memory and launcher. It must allocate everything that a kernel reads or writes from this memory, and launch every kernel
with this launcher, so that every access is guarded and every launch is recorded.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import torch

from attnfuzz.kernels.interface.compared import ComparedResult
from attnfuzz.kernels.interface.library_call import LibraryCall
from attnfuzz.reference import nvfp4
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.key_shares import KeyShares
from attnfuzz.reference.noise import NoiseModel


class Unsupported(Exception):
    """A rejection before the launch: the kernel declares that it does not support the arguments."""


class NotRefused(Exception):
    """A kernel accepted arguments that its API says it refuses."""


class Fill(StrEnum):
    """Contents of a new tensor: OUTPUT is the case's sentinel or stale numbers, POISON must not be read."""

    POISON = "poison"
    ZEROS = "zeros"
    OUTPUT = "output"


NO_HOLE = range(0)


class Memory(Protocol):
    """Guarded memory: each tensor has a separate allocation, flush with an unmapped page.

    If it is `direct`, the host writes it immediately. Other memory is best written in few large pieces.
    """

    direct: bool

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        stride: Sequence[int] | None = None,
        fill: Fill = Fill.POISON,
        hole: range = NO_HOLE,
    ) -> torch.Tensor:
        """Return a tensor named `name`. `stride` (in elements) may leave gaps: poison that belongs to no tensor.

        The rows of `hole`, on the first axis, are bare addresses without memory: any access to them faults, except on
        pages that they share with other rows.
        """

    def copy(self, name: str, value: torch.Tensor, *, stride: Sequence[int] | None = None) -> torch.Tensor:
        """Return a guarded tensor with the values, shape and dtype of `value`."""

    def overwrite(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Write values, from any device and of any dtype, into a tensor of this memory or a view of one."""

    def at_once(self) -> AbstractContextManager[None]:
        """Write all tensors made, overwritten or renewed in the `with` block together, at its end or before a launch.

        On a GPU this is one launch instead of one for each. Nothing else in the block may touch the contents of these
        tensors.
        """

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the non-empty `tensor` is in this memory."""

    def renew(self, tensor: torch.Tensor) -> None:
        """Restore a static output before it is written again: its sentinel, or nothing for stale numbers."""


@dataclass(frozen=True)
class Op:
    """One kernel entry point: `function` takes the arguments of FlashInfer's function of that `name`.

    `writes` names the arguments that it may write; all others must stay unchanged, bit for bit. `module` is the
    FlashInfer module of the function, None for a function of this project. An `own` op is code of the backend itself:
    its faults are recorded like any other's, but traces have only its writes, not its calls. An op that `plans`
    prepares launches or moves their results, and computes none. An op that `helps` is not under test: its arguments
    always have their plain form. The outputs `returned` are not passed to the kernel, but copied from its result.
    `library` is the call of a library that it makes, if that is known as data. An op that runs `apart` does so on a
    stream of its own.
    """

    name: str
    function: Callable[..., Any]
    writes: frozenset[str]
    module: str | None = None
    own: bool = False
    plans: bool = False
    helps: bool = False
    returned: frozenset[str] = frozenset()
    library: LibraryCall | None = None
    apart: bool = False


class Graph(Protocol):
    """A recorded sequence of launches."""

    def replay(self) -> None:
        """Run the launches again, with the scalars of the capture and the present contents of the tensors."""


class Launcher(Protocol):
    """The only way to launch a kernel. Writes the journal, launches, and checks that inputs are unchanged.

    Launches on a GPU are asynchronous: the harness waits once per step.
    """

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """Call `op`. In a capture, the call is recorded instead, and None is returned."""

    def reached_by(self, words: str) -> None:
        """Describe how a server reaches the following launches of this step, for the text of failures in it."""

    def called_from(self, words: str) -> None:
        """Set the line of an engine's source that makes the next launch, for the text of failures of its kernel."""

    def report(self, place: str, text: str) -> None:
        """Report that the next launch breaks a precondition of its function. `place` names the arguments."""

    def make_again(self) -> None:
        """Remove the launches of this step from its trace: they were rejected, and the step runs once more."""

    def capture(self) -> AbstractContextManager[Graph]:
        """Record every launch inside the `with` block, for replays after it."""

    def capture_all(self) -> AbstractContextManager[Graph]:
        """Capture all GPU work of the `with` block, both launches and torch's own operations."""


class LauncherAround(Launcher):
    """Part of a launcher with its own `launch`: the other calls are passed on to `inner`."""

    def __init__(self, inner: Launcher) -> None:
        self._inner = inner

    def reached_by(self, words: str) -> None:
        """Pass on how a server reaches the launches."""
        self._inner.reached_by(words)

    def called_from(self, words: str) -> None:
        """Pass on the line of an engine that makes the next launch."""
        self._inner.called_from(words)

    def report(self, place: str, text: str) -> None:
        """Pass on a breach of a precondition."""
        self._inner.report(place, text)

    def make_again(self) -> None:
        """Pass on that the step is made once more."""
        self._inner.make_again()

    def capture(self) -> AbstractContextManager[Graph]:
        """Pass on the recording of launches."""
        return self._inner.capture()

    def capture_all(self) -> AbstractContextManager[Graph]:
        """Pass on the capture of all GPU work."""
        return self._inner.capture_all()


@dataclass(frozen=True)
class Bench:
    """The memory, launcher and device of a session."""

    memory: Memory
    launcher: Launcher
    device: torch.device


@dataclass(frozen=True)
class Attended:
    """The ground truth for one request's queries: the inputs of the attention that the reference computes.

    query [q_len, q_heads, head_dim_qk] as passed to the kernel; key [kv_len, kv_heads, head_dim_qk] and value [kv_len,
    kv_heads, head_dim_vo] in the KV cache's dtype. `first_row` is the output row of the first query. `mask` is bool
    [q_len, kv_len] on the host, True where a query sees a key, or None for a causal mask.
    """

    first_row: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None


@dataclass(frozen=True)
class Output:
    """The output of a step: out [rows, q_heads, head_dim_vo], lse [rows, q_heads] float32 or None.

    `attended` has an entry for each real request, in order; every other row is padding. `bmm1_scale` multiplies the
    logits and `bmm2_scale` the output, as requested of the backend. `roundings` counts the roundings of a value to the
    output's dtype (one, plus one per merge). With `shares`, each rank's part of an output was rounded before the merge.
    `returned` describes a value that a function returned, which is ignored.
    """

    out: torch.Tensor
    lse: torch.Tensor | None
    attended: tuple[Attended, ...]
    bmm1_scale: float
    bmm2_scale: float
    roundings: int = 1
    sinks: torch.Tensor | None = None
    shares: KeyShares | None = None
    returned: str = ""


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor of the KV cache before and after a step's writes, or a tensor derived from it, as integers of its bits.

    Both are [pages, slots, heads, dim], without the pages in `hole`, which have no memory. The new tokens belong in the
    slots `at` [2, n] (index of the page, slot of the page), and must be between `low` and `high` [n, heads, dim] in the
    cache's dtype, or equal them bit for bit if both are the same tensor. The slots in `free` [2, m] may have any
    contents, and all others must not change. If it is not `paged`, it is a single page of rows. With `nibbles`, each
    byte has two numbers of NVFP4, whose bounds are in e4m3. For swizzled scales, `after` is a copy of `memory`, which
    is [pages, slots / 4, 4, heads, 4, dim / 4]. Its new tokens begin at index `first` of `WrittenCache.tokens`.
    """

    name: str
    before: torch.Tensor
    after: torch.Tensor
    at: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    free: torch.Tensor
    hole: range = NO_HOLE
    paged: bool = True
    nibbles: bool = False
    memory: torch.Tensor | None = None
    first: int = 0

    def numbers(self, bits: torch.Tensor) -> torch.Tensor:
        """Return the bits of single numbers."""
        return nvfp4.unpacked(bits).view(torch.uint8) if self.nibbles else bits

    def _in_memory(self, numbers: torch.Tensor) -> torch.Tensor:
        """Undo `numbers`: pack them as they are in memory."""
        if not self.nibbles:
            return numbers
        return nvfp4.packed(nvfp4.rounded(numbers.view(torch.float8_e4m3fn).float()))

    def within(self, bits: torch.Tensor) -> torch.Tensor:
        """Return whether each number, whose `bits` broadcast to `low`, is within its bounds.

        If one bound is NaN, it does not limit the number, and NaN is allowed. If both are NaN, the number must be NaN.
        """
        same: torch.Tensor = bits == self.low.view(bits.dtype)
        if self.low is self.high:
            return same
        value, low, high = (each.float() for each in (bits.view(self.low.dtype), self.low, self.high))
        above, below = (low <= value) | low.isnan(), (value <= high) | high.isnan()
        bounded = ~(low.isnan() & high.isnan())
        return torch.where(value.isnan(), low.isnan() | high.isnan(), above & below & bounded)

    @cached_property
    def right(self) -> torch.Tensor:
        """The correct bits [pages, slots, heads, dim]: the bits after the writes, corrected where they are wrong."""
        right = self.before.clone()
        held = self.numbers(self.after[self.at[0], self.at[1]])
        due = torch.where(self.within(held), held, self.low.view(held.dtype))
        right[self.at[0], self.at[1]] = self._in_memory(due)
        right[self.free[0], self.free[1]] = self.after[self.free[0], self.free[1]]
        return right

    @cached_property
    def as_due(self) -> bool:
        """Whether all bits are correct."""
        words = 8 // self.after.itemsize
        wide = all(
            each.shape[-1] % words == 0
            and each.storage_offset() % words == 0
            and each.stride()[-1] == 1
            and all(stride % words == 0 for stride in each.stride()[:-1])
            for each in (self.right, self.after)
        )
        # Words of 64 bits are compared three times as fast as elements.
        return torch.equal(*(each.view(torch.int64) if wide else each for each in (self.right, self.after)))


@dataclass(frozen=True)
class WrittenCache:
    """The state of the KV cache after a step's writes.

    `tokens` has a pair (index of the request in its step, index of the token) for each token in `at`. The token index
    counts new tokens or, for a kernel that copies, keys. `kernel` names the op that wrote them, or is "" for the step's
    last op.
    """

    tensors: tuple[WrittenTensor, ...]
    tokens: tuple[tuple[int, int], ...]
    kernel: str = ""

    def due(self) -> list[torch.Tensor]:
        """Return the correct bits of each tensor."""
        return [tensor.right for tensor in self.tensors]


@dataclass(frozen=True)
class WrittenThenAttended:
    """A step that has written its new tokens and attended to the cache with them.

    `output.attended` has the correct contents. If the `written` contents are wrong, the output says nothing about the
    attention, and `attend_again` runs the attention on the correct contents.
    """

    written: WrittenCache
    output: Output
    attend_again: Callable[[], Output]


class JudgedOnHost:
    """A dataclass with a result of which every tensor is copied to the host before it is judged."""


Result = Output | WrittenCache | WrittenThenAttended | ComparedResult | JudgedOnHost
"""The result of a step."""


class Session(Protocol):
    """A backend running one case."""

    def forward(self, index: int) -> Result | None:
        """Run step `index` of the case, and return its result, or None for a capture, which computes nothing.

        A session that schedules requests itself runs one forward of the step, and has a method `unfinished(index)`.
        """


def unfinished(session: Session, index: int) -> bool:
    """Return whether step `index` needs another forward after the first."""
    needs = getattr(session, "unfinished", None)
    return needs is not None and bool(needs(index))


class Backend(Protocol):
    """An implementation of attention under test."""

    @property
    def name(self) -> str:
        """The name for users, such as trtllm_mha@21649-before."""

    @property
    def capability(self) -> Capability:
        """The cases that it supports."""

    @property
    def contract(self) -> Contract:
        """The promises besides a correct output."""

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the error of a correct run on queries of `dtype`. NoiseModel.unknown_kernel() is a safe choice."""

    @property
    def ops(self) -> Mapping[str, Op]:
        """The kernels of the backend by name, for cases made of literal calls."""

    def missing(self) -> str | None:
        """Return the reason that this machine can't run it and the remedy, in one line, or None if it can."""

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile or load everything sessions need and report slow steps to `progress`. Runs before any session."""

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on a case that `capability` covers."""


def in_inference_mode(backend: Backend) -> bool:
    """Return whether sessions run in torch's inference mode, in which small operations take a tenth less time.

    Backends may lack the attribute: a user's code may have gradients, and an engine's sets the mode itself.
    """
    return bool(getattr(backend, "in_inference_mode", False))


def called_as_documented(backend: Backend) -> bool:
    """Return whether attnfuzz makes the arguments of its function, as documented: then a failure is the function's.

    Backends may lack the attribute: a planner, which may be at fault, makes their arguments.
    """
    return bool(getattr(backend, "called_as_documented", False))


def shares_pool(backend: Backend) -> bool:
    """Return whether sessions work on a pool that a writer and attention may share: a `PagedKv`.

    Backends may lack the attribute: their pools are their own.
    """
    return bool(getattr(backend, "shares_pool", False))


def archs_of(backend: Backend) -> Collection[str]:
    """Return the compute capabilities, like "9.0", of the GPUs that a backend's kernels are made for.

    Backends may lack the attribute: they run on a CPU, or on any GPU.
    """
    archs: Collection[str] = getattr(backend, "archs", ())
    return archs


def package_of(backend: Backend) -> str:
    """Return the package with the kernels of a backend, or "" if it has its own, or is not known to call a package.

    Backends may lack the attribute.
    """
    return str(getattr(backend, "package", ""))
