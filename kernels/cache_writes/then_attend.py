"""A server's whole step: a writer stores the new tokens in the KV cache, and attention reads them there.

Both run on one pool, and in one graph where the step is captured: the write, then the attention. The attention that is
due is that to the contents that are due, so that a wrong write is the writer's failure alone, and attention beside it
is judged by another run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from msgspec import structs

from attnfuzz.kernels.cache_writes.writer_backend import WriterBackend
from attnfuzz.kernels.interface.backend import (
    Backend,
    Bench,
    Graph,
    Launcher,
    LauncherAround,
    Op,
    Output,
    Session,
    Unsupported,
    WrittenThenAttended,
    shares_pool,
)
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.reference.capability import FLOATS, Capability
from attnfuzz.reference.case import Case, Launch, Step
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel


class NoPair(ValueError):
    """Two backends that have no step in common; the message is a clause with the reason."""


Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class _Launch:
    op: Op
    arguments: Arguments


class StepSession:
    """A server's steps on one pool. Planted defects override a method.

    Attention's session fills the pool before a step, the new tokens included. These are unset again, and the writer
    writes them.
    """

    def __init__(self, pair: "WriteThenAttend", case: Case, bench: Bench) -> None:
        self._case = case
        self._launcher = _StepLauncher(bench.launcher, self)
        self._reader: Session = pair.reader.open(case, replace(bench, launcher=self._launcher))
        kv = getattr(self._reader, "kv", None)
        assert isinstance(kv, PagedKv)
        assert isinstance(pair.writer, WriterBackend)
        self._kv = kv
        self._writer = pair.writer.open(case, bench, kv)
        self._before: dict[str, torch.Tensor] = {}
        self._right: Sequence[torch.Tensor] | None = None
        kv.after_write = self._filled

    @property
    def attends_alone(self) -> bool:
        """Whether attention runs again, on the contents that are due."""
        return self._right is not None

    def forward(self, index: int) -> WrittenThenAttended | None:
        """Run one step; None for a capture."""
        step = self._case.steps[index]
        if step.launch is Launch.CAPTURE:
            self._launcher.write = self._writer.captured(step)
            self._reader.forward(index)
            return None
        output = self._attended(index)
        written = self._writer.written(step, self._before)
        right = written.due()
        return WrittenThenAttended(written, self._due(step, output, right), partial(self._again, index, right))

    def _attended(self, index: int) -> Output:
        output = self._reader.forward(index)
        assert isinstance(output, Output)
        return output

    def _again(self, index: int, right: Sequence[torch.Tensor]) -> Output:
        """Attend again, on a pool with the contents that are due."""
        self._right = right
        try:
            return self._due(self._case.steps[index], self._attended(index), right)
        finally:
            self._right = None

    def _filled(self, step: Step) -> None:
        """Write the new tokens of a step, whose pool has been filled; a replay does it in its graph."""
        if self._right is not None:
            self._kv.restore(self._right)
            return
        self._writer.unset(step)
        self._before = self._writer.contents()
        if step.launch is Launch.REPLAY:
            self._writer.refresh(step)
        else:
            self._write(step)

    def _write(self, step: Step) -> None:
        """Write the new tokens of an eager step."""
        self._writer.write(step)

    def _due(self, step: Step, output: Output, right: Sequence[torch.Tensor]) -> Output:
        """Return the output with the attention to these contents of the pool."""
        attended = []
        for entry, request in zip(output.attended, step.requests, strict=True):
            key, value = self._kv.held(right, request)
            attended.append(replace(entry, key=key, value=value))
        return replace(output, attended=tuple(attended))

    def handed(self, arguments: Arguments) -> Arguments:
        """Return the arguments of attention's launch, as its session has them."""
        return arguments

    def record(self, write: Callable[[], None], attend: Callable[[], None]) -> None:
        """Record the launches of a graph."""
        write()
        attend()

    def refreshed(self, arguments: Arguments) -> None:
        """Follow a launch or a replay of attention: called before it, with its tensors as they are read."""


class _StepGraph:
    """The graph of a whole step, and that of its attention alone."""

    def __init__(self, session: StepSession, launches: Sequence[_Launch]) -> None:
        self._session, self._launches = session, launches
        self.whole: Graph | None = None
        self.attention: Graph | None = None

    def replay(self) -> None:
        """Replay the step, or its attention if that runs again."""
        for launch in self._launches:
            self._session.refreshed(launch.arguments)
        graph = self.attention if self._session.attends_alone else self.whole
        assert graph is not None
        graph.replay()


class _StepLauncher(LauncherAround):
    """Attention's launcher, which records the write of the step in each graph. `write` launches that of a capture."""

    def __init__(self, launcher: Launcher, session: StepSession) -> None:
        super().__init__(launcher)
        self._session = session
        self._recorded: list[_Launch] | None = None
        self.write: Callable[[], None] = lambda: None

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """Launch attention, or keep the launch for the graph."""
        handed = self._session.handed(arguments)
        if self._recorded is not None:
            self._recorded.append(_Launch(op, handed))
            return None
        self._session.refreshed(handed)
        return self._inner.launch(op, **handed)

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Capture the launches of the block behind the write, and once more without it."""
        recorded: list[_Launch] = []
        self._recorded = recorded
        graph = _StepGraph(self._session, recorded)
        try:
            yield graph
        finally:
            self._recorded = None
        with self._inner.capture() as graph.whole:
            self._session.record(self.write, partial(self._attend, recorded))
        with self._inner.capture() as graph.attention:
            self._attend(recorded)

    def _attend(self, launches: Sequence[_Launch]) -> None:
        for each in launches:
            self._inner.launch(each.op, **each.arguments)

    def capture_all(self) -> AbstractContextManager[Graph]:
        """Refuse: the write would be missing."""
        raise Unsupported("a graph that holds more than launches can't follow a write")


@dataclass(frozen=True)
class WriteThenAttend:
    """A writer and attention as one backend, called `label`, by default WRITER,READER. Defects replace the session.

    Raises NoPair if they have no case in common.
    """

    writer: Backend
    reader: Backend
    session: type[StepSession] = StepSession
    label: str = ""

    def __post_init__(self) -> None:
        common(self.writer, self.reader)

    @property
    def name(self) -> str:
        """The label."""
        return self.label or f"{self.writer.name},{self.reader.name}"

    @cached_property
    def capability(self) -> Capability:
        """The cases that both support."""
        return common(self.writer, self.reader)

    @property
    def contract(self) -> Contract:
        """Attention's promises; a writer has none."""
        return self.reader.contract

    def noise(self, dtype: DType) -> NoiseModel:
        """Return attention's model: the keys that are due are those in the cache."""
        return self.reader.noise(dtype)

    @property
    def ops(self) -> Mapping[str, Op]:
        """The kernels of both."""
        return {**self.reader.ops, **self.writer.ops}

    def missing(self) -> str | None:
        """Return the reason that one of them can't run here."""
        return self.writer.missing() or self.reader.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Prepare both."""
        self.writer.prepare(progress)
        self.reader.prepare(progress)

    def open(self, case: Case, bench: Bench) -> StepSession:
        """Open a session on one case."""
        return self.session(self, case, bench)


def common(writer: Backend, reader: Backend) -> Capability:
    """Return the cases of attention that the writer can write for. Raises NoPair if there are none."""
    of_writer, of_reader = writer.capability, reader.capability
    if not of_writer.writes:
        raise NoPair(f"{writer.name} writes no new tokens into the KV cache")
    if of_writer.rotary:
        raise NoPair(f"{writer.name} rotates keys, which can't be tested together with attention yet")
    if of_reader.writes:
        raise NoPair(f"{reader.name} computes no attention")
    if of_writer.device is not of_reader.device:
        raise NoPair(f"{writer.name} runs on {of_writer.device}, and {reader.name} on {of_reader.device}")
    if of_writer.buckets or of_reader.buckets:
        raise NoPair("kernels that are compiled for some geometries can't be combined yet")
    for each in (writer, reader):
        if not shares_pool(each):
            raise NoPair(f"{each.name} stores no new tokens in the pool, or has a pool of its own")
    if of_writer.latent is not of_reader.latent:
        raise NoPair("only one of them has latents")
    if of_writer.nvfp4_kv is not of_reader.nvfp4_kv:
        raise NoPair("only one of them has an NVFP4 cache")
    can = _common(of_writer, of_reader)
    for field in _NEEDED:
        if not getattr(can, field):
            raise NoPair(f"{writer.name} and {reader.name} have no {field.replace('_', ' ')} in common")
    return can


_QUANTISED = (DType.FLOAT8_E4M3, DType.FLOAT4_E2M1)
_NEEDED = ("modes", "dtypes", "page_sizes", "layouts", "query_views", "kv_views", "padded_slots", "granularities")


def _common(writer: Capability, reader: Capability) -> Capability:
    # A prefill of latents attends to keys that are projected from them, and reads no page.
    modes = tuple(mode for mode in _both(reader.modes, writer.modes) if mode.speculative or not reader.latent)
    head_dims = _both(reader.head_dims, writer.head_dims) if reader.head_dims and writer.head_dims else ()
    return structs.replace(
        reader,
        modes=modes,
        graph_modes=_both(reader.graph_modes, writer.graph_modes, modes),
        dtypes=_both(reader.dtypes, writer.dtypes),
        fp8_kv=reader.fp8_kv and writer.fp8_kv,
        max_head_dim=min(reader.max_head_dim, writer.max_head_dim),
        head_dims=head_dims or reader.head_dims or writer.head_dims,
        unequal_head_dims=reader.unequal_head_dims and writer.unequal_head_dims,
        page_sizes=_both(reader.page_sizes, writer.page_sizes),
        layouts=_both(reader.layouts, writer.layouts),
        kv_scales=tuple(dtype for dtype in (*FLOATS, *_QUANTISED) if reader.scales(dtype) and writer.scales(dtype)),
        granularities=_both(reader.granularities, writer.granularities),
        block_scales=_both(reader.block_scales, writer.block_scales),
        padding=reader.padding and writer.padding,
        empty_kv=False,
        kv_shorter_than_q=False,
        query_views=_both(reader.query_views, writer.query_views),
        value_strides=writer.value_strides,
        kv_views=_both(reader.kv_views, writer.kv_views),
        table_gaps=reader.table_gaps and writer.table_gaps,
        pool_holes=reader.pool_holes and writer.pool_holes,
        padded_slots=writer.padded_slots,
        tombstones=_both(reader.tombstones, writer.tombstones),
        other_groups=_both(reader.other_groups, writer.other_groups),
        patience=max(reader.patience, writer.patience),
    )


def _both(first: tuple[Any, ...], *others: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the members of `first` that all others have, in its order."""
    return tuple(each for each in first if all(each in other for other in others))
