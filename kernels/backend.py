"""The types between the harness, which places tensors and judges outputs, and the backends under test.

A backend states its capability and its contract, and opens a session on a case. The session gets a Bench: the harness's
memory and launcher. It allocates everything that a kernel reads or writes there, and launches every kernel there, so
that every access is guarded and every launch is recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import torch

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
    """Guarded memory: each tensor has its own allocation, flush with an unmapped page.

    `direct`: the host writes it by itself, at once. Other memory is best written in few large pieces.
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
        """A tensor called `name`. `stride` (in elements) may leave gaps, which stay poison and belong to no tensor.

        The rows of `hole`, on the first axis, have addresses alone: any access faults, but for parts of a page.
        """

    def copy(self, name: str, value: torch.Tensor, *, stride: Sequence[int] | None = None) -> torch.Tensor:
        """A guarded tensor with the values, shape and dtype of `value`."""

    def overwrite(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Write values, from any device and of any dtype, into a tensor of this memory or a view of one."""

    def at_once(self) -> AbstractContextManager[None]:
        """Write all tensors made, overwritten or renewed in the `with` block together, at its end or before a launch.

        On a GPU this is one launch instead of one for each. Nothing else in the block may touch the contents of these
        tensors.
        """

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor`, which has elements, lies in this memory."""

    def renew(self, tensor: torch.Tensor) -> None:
        """Restore a static output before it is written again: its sentinel, or nothing for stale numbers."""


@dataclass(frozen=True)
class Op:
    """One kernel entry point: `function` takes the arguments of FlashInfer's function of that `name`.

    `writes` names the arguments that it may write; all others must stay unchanged, bit for bit. `module` is the
    FlashInfer module of the function, None for a function of this project. An op that is `own` is code of the backend
    itself: its faults are recorded like any other's, but traces have only its writes, not its calls. One that `plans`
    prepares launches and writes no results. One that `helps` is not under test: it is called plainly. The outputs
    `returned` are not passed to the kernel, but copied from its result.
    """

    name: str
    function: Callable[..., Any]
    writes: frozenset[str]
    module: str | None = None
    own: bool = False
    plans: bool = False
    helps: bool = False
    returned: frozenset[str] = frozenset()


class Graph(Protocol):
    """A recorded sequence of launches."""

    def replay(self) -> None:
        """Run the launches again, with the scalars of the capture and the present contents of the tensors."""


class Launcher(Protocol):
    """The only way to a kernel. Writes the journal, launches, and checks that inputs are unchanged.

    Launches on a GPU are asynchronous: the harness waits once per step.
    """

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """Call `op`. In a capture, the call is recorded instead, and None is returned."""

    def reached_by(self, words: str) -> None:
        """Describe a server's path to the following launches of this step, for the text of failures in it."""

    def called_from(self, words: str) -> None:
        """Say which line of an engine's source makes the next launch, for the text of failures of its kernel."""

    def report(self, place: str, text: str) -> None:
        """Report that the next launch breaks a precondition of its function: in the arguments `place`, as `text`."""

    def make_again(self) -> None:
        """Leave the launches of this step out of its trace: they were refused, and the step is made once more."""

    def capture(self) -> AbstractContextManager[Graph]:
        """Record every launch inside the `with` block, for replays after it."""

    def capture_all(self) -> AbstractContextManager[Graph]:
        """Capture all GPU work of the `with` block, both launches and torch's own operations."""


class LauncherAround(Launcher):
    """Part of a launcher with its own `launch`: the other calls are passed on to `inner`."""

    def __init__(self, inner: Launcher) -> None:
        self._inner = inner

    def reached_by(self, words: str) -> None:
        """Pass on how a server gets to the launches."""
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
    """The attention due to one request's queries: ground truth, from which the reference answers.

    query [q_len, q_heads, head_dim_qk] as passed to the kernel; key [kv_len, kv_heads, head_dim_qk] and value
    [kv_len, kv_heads, head_dim_vo] in the KV cache's dtype. `first_row` is the output row of the first query. `mask` is
    bool [q_len, kv_len] on the host, set where a query sees a key; None if it is causal.
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
    """

    out: torch.Tensor
    lse: torch.Tensor | None
    attended: tuple[Attended, ...]
    bmm1_scale: float
    bmm2_scale: float
    roundings: int = 1
    sinks: torch.Tensor | None = None
    shares: KeyShares | None = None


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor of the KV cache before and after a step's writes, or a tensor made of it, as integers of its bits.

    Both are [pages, slots, heads, dim], without the pages in `hole`, which have no memory. The new tokens belong in the
    slots `at` [2, n] (index of the page, slot of the page), and must be from `low` to `high` [n, heads, dim] in the
    cache's dtype; where both are one tensor, the same bits. The slots in `free` [2, m] may hold anything, and all
    others must not change. One that is not `paged` is a single page of rows. With `nibbles`, each byte has two numbers
    of NVFP4, of which bounds are in e4m3. Of swizzled scales, `after` is a copy of `memory`, which is [pages,
    slots / 4, 4, heads, 4, dim / 4]. Its new tokens are those of `WrittenCache.tokens` from `first` on.
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
        """The bits of single numbers."""
        return nvfp4.unpacked(bits).view(torch.uint8) if self.nibbles else bits

    def _in_memory(self, numbers: torch.Tensor) -> torch.Tensor:
        """Undo `numbers`."""
        if not self.nibbles:
            return numbers
        return nvfp4.packed(nvfp4.rounded(numbers.view(torch.float8_e4m3fn).float()))

    def within(self, bits: torch.Tensor) -> torch.Tensor:
        """Whether each number, whose `bits` broadcast to `low`, is within its bounds.

        A bound of NaN is none, and allows NaN; two of them require it.
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
        """The bits that are due [pages, slots, heads, dim]: those after the writes, wherever these are right."""
        right = self.before.clone()
        held = self.numbers(self.after[self.at[0], self.at[1]])
        due = torch.where(self.within(held), held, self.low.view(held.dtype))
        right[self.at[0], self.at[1]] = self._in_memory(due)
        right[self.free[0], self.free[1]] = self.after[self.free[0], self.free[1]]
        return right

    @cached_property
    def as_due(self) -> bool:
        """Whether all bits are those that are due."""
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

    `tokens` has (index of the request in its step, index of the token) of the tokens in `at`: the index among the new
    ones, or, for a kernel that copies, among the keys.
    `kernel` names the op that wrote them, "" for the step's last one.
    """

    tensors: tuple[WrittenTensor, ...]
    tokens: tuple[tuple[int, int], ...]
    kernel: str = ""

    def due(self) -> list[torch.Tensor]:
        """The bits that are due in each tensor."""
        return [tensor.right for tensor in self.tensors]


@dataclass(frozen=True)
class WrittenThenAttended:
    """A step that has written its new tokens and attended to the cache with them.

    The attention of `output` is that to the contents that are due. If others were `written`, it says nothing about the
    attention, and `attend_again` runs it on the contents that are due.
    """

    written: WrittenCache
    output: Output
    attend_again: Callable[[], Output]


Result = Output | WrittenCache | WrittenThenAttended
"""The result of a step."""


class Session(Protocol):
    """A backend running one case."""

    def forward(self, index: int) -> Result | None:
        """Run step `index` of the case; None for a capture, which computes nothing.

        A session that schedules requests itself runs one forward of the step, and has `unfinished(index)`.
        """


def unfinished(session: Session, index: int) -> bool:
    """Whether step `index`, of which a forward has run, needs another one."""
    needs = getattr(session, "unfinished", None)
    return needs is not None and bool(needs(index))


class Backend(Protocol):
    """An implementation of attention under test."""

    @property
    def name(self) -> str:
        """The name for users, such as trtllm_mha@21649-before."""

    @property
    def capability(self) -> Capability:
        """The supported cases."""

    @property
    def contract(self) -> Contract:
        """The promises beyond the right numbers."""

    def noise(self, dtype: DType) -> NoiseModel:
        """The error of a correct run on queries of `dtype`; NoiseModel.unknown_kernel() is a safe answer."""

    @property
    def ops(self) -> Mapping[str, Op]:
        """Its kernels by name, for cases made of literal calls."""

    def missing(self) -> str | None:
        """Return the reason that this machine can't run it and the remedy, in one line; None if it can."""

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile or load the needs of every session, reporting slow steps to `progress`. Called before any session."""

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on a case that `capability` covers."""


def in_inference_mode(backend: Backend) -> bool:
    """Whether sessions run in torch's inference mode, in which small operations take a tenth less time.

    Backends may lack the attribute: a user's code may have gradients, and an engine's sets the mode itself.
    """
    return bool(getattr(backend, "in_inference_mode", False))


def shares_pool(backend: Backend) -> bool:
    """Whether sessions work on a pool that a writer and attention may have in common: a `PagedKv`.

    Backends may lack the attribute: their pools are their own.
    """
    return bool(getattr(backend, "shares_pool", False))
