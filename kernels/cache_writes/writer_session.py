"""A writer of the KV cache, running one case: each step's new tokens, in a pool whose every bit is known before."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from msgspec import structs

from attnfuzz.kernels.cache_writes.new_tokens import Metadata, NewTokens, WriteMetadata
from attnfuzz.kernels.cache_writes.rotation import Rotation
from attnfuzz.kernels.cache_writes.stored import Conversion, Scale
from attnfuzz.kernels.functions.arranged import placed
from attnfuzz.kernels.functions.function_backend import Keywords
from attnfuzz.kernels.interface.backend import Bench, Graph, Op, WrittenCache, WrittenTensor
from attnfuzz.kernels.interface.transfers import to_device, write
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.queries import query_strides
from attnfuzz.reference.case import Case, Granularity, Launch, Mode, PaddedSlot, QueryView, Step
from attnfuzz.reference.dtypes import DType

_Arguments = Mapping[str, Any]
Bounds = tuple[torch.Tensor, torch.Tensor]
"""The smallest and the largest numbers, elementwise; one tensor twice where bits are due."""

Contents = Mapping[str, torch.Tensor]
"""Bits [pages, slots, heads, dim] by the names of tensors."""

_SCALES_OF = {"k_cache": "k_scales", "v_cache": "v_scales"}
_OTHER = " of the other group"
_NOWHERE = torch.zeros(2, 0, dtype=torch.int64)


@dataclass(frozen=True)
class Writer:
    """One kernel that writes, and how it is called.

    `op` gets those of the documented arguments (see `attnfuzz.kernels.cache_writes.writer_backend`) that it has
    parameters for. `arrange` gets them in the same way, and returns further or replacing arguments. After a launch,
    `restore` gets both, and copies a cache in the kernel's own layout back into `k_cache` and `v_cache`, or `kv_cache`.
    `rotation` and `conversion` say how it rounds.
    """

    op: Op
    conversion: Conversion = Conversion()
    arrange: Callable[..., _Arguments] | None = None
    restore: Callable[..., None] | None = None
    parameters: Callable[..., Any] | None = field(default=None, kw_only=True)
    rotation: Rotation = field(default=Rotation(), kw_only=True)

    def takes(self, name: str) -> bool:
        """Return whether the op, or `arrange`, has a parameter of that name."""
        functions = (self.parameters or self.op.function, self.arrange)
        return any(name in Keywords.of(each).named for each in functions if each is not None)

    def arguments(self, described: _Arguments, bench: Bench) -> dict[str, Any]:
        """Make the arguments of a launch, tensors in guarded memory."""
        arranged = {}
        if self.arrange is not None:
            made = self.arrange(**Keywords.of(self.arrange).select(described, described))
            arranged = placed(made, bench.memory)
        taken = Keywords.of(self.parameters or self.op.function).select(described, described)
        return taken | arranged


class WriterSession:
    """A server's write of each step's new tokens. Planted defects and revisions override a method, or a part.

    Subclasses that do not `store` leave the new tokens out.
    """

    stores: ClassVar[bool] = True
    planner_type: type[WriteMetadata] = WriteMetadata

    def __init__(self, writer: Writer, case: Case, bench: Bench, kv: PagedKv | None = None) -> None:
        self._writer, self._case, self._bench = writer, case, bench
        self._kv = kv or PagedKv(case, bench)
        self._tokens = NewTokens(case, self._kv)
        self._metadata = self.planner_type(case, self._kv, self._tokens)
        self._static: dict[tuple[Mode, int], dict[str, torch.Tensor]] = {}
        self._graphs: dict[tuple[Mode, int], Graph] = {}
        self._beside = self._of_other_group()

    def _of_other_group(self) -> "WriterSession | None":
        """Return the session of the other group of layers in the pool, if the case has one."""
        other = self._kv.other
        return None if other is None else type(self)(self._writer, other.case, self._bench, other)

    def forward(self, index: int) -> WrittenCache | None:
        """Write the new tokens of one step; None for a capture."""
        step = self._case.steps[index]
        if step.launch is Launch.CAPTURE:
            launch = self.captured(step)
            with self._bench.launcher.capture() as graph:
                launch()
            self._graphs[step.mode, step.padded_tokens] = graph
            return None
        self._kv.write(self._state(step))
        before = self.contents()
        if step.launch is Launch.REPLAY:
            self.refresh(step)
            self._graphs[step.mode, step.padded_tokens].replay()
        else:
            self.write(step)
        return self.written(step, before)

    def _state(self, step: Step) -> Step:
        """Return the step whose keys are in the pool before it."""
        return self._tokens.before(step)

    def write(self, step: Step) -> None:
        """Plan and launch an eager step."""
        tensors = self._placed(step, self._metadata.of(step))
        self._watch(tensors)
        self._launch(tensors)
        if self._beside is not None:
            self._beside.write(step)

    def _watch(self, tensors: Contents) -> None:
        """Look at the tensors of a step: called before each launch, or replay."""

    def captured(self, step: Step) -> Callable[[], None]:
        """Place the static tensors of a capture, and return its launches."""
        static = self._placed(step, self._metadata.largest(step))
        self._static[step.mode, step.padded_tokens] = static
        launch = partial(self._launch, static)
        if self._beside is None:
            return launch
        beside = self._beside.captured(step)

        def both() -> None:
            launch()
            beside()

        return both

    def refresh(self, step: Step) -> None:
        """Write the tensors of a replayed step to those of its graph."""
        static = self._static[step.mode, step.padded_tokens]
        self._refresh(static, {**self._new(step), **self._metadata.of(step)})
        self._watch(static)
        if self._beside is not None:
            self._beside.refresh(step)

    def unset(self, step: Step) -> None:
        """Take the new tokens of a step out of the pool."""
        self._kv.unset(self.slots(step))
        if self._beside is not None:
            self._beside.unset(step)

    def slots(self, step: Step) -> torch.Tensor:
        """Return the page and the slot of the page [2, tokens] of each new token of a request that is stored."""
        places = list(self._tokens.places(step))
        return torch.tensor([[place.page for place in places], [place.offset for place in places]], dtype=torch.int64)

    def contents(self) -> dict[str, torch.Tensor]:
        """Copy the bits of each pool, as each group of layers sees them."""
        own = {name: pool.clone() for name, pool in self._pools().items()}
        return (
            own
            if self._beside is None
            else own | {f"{name}{_OTHER}": bits for name, bits in self._beside.contents().items()}
        )

    def _placed(self, step: Step, metadata: Metadata) -> dict[str, torch.Tensor]:
        """Place a step's tokens and metadata in guarded memory."""
        return {**self._place_tokens(step), **self._place_metadata(metadata)}

    def _new(self, step: Step) -> dict[str, torch.Tensor]:
        """Return the tokens of a step, on the host: rows [padded tokens, heads, dim] by the names of arguments."""
        key, value = self._tokens.values(step)
        return {"key": key} if self._case.geometry.latent else {"key": key, "value": value}

    def _place_tokens(self, step: Step) -> dict[str, torch.Tensor]:
        memory = self._bench.memory
        return {
            name: memory.copy(name, each, stride=query_strides(self._viewed(name), each.shape[1], each.shape[2]))
            for name, each in self._new(step).items()
        }

    def _viewed(self, name: str) -> Case:
        """Return the case whose query view is the view of this argument."""
        case = self._case
        if name != "value" or not case.views.value_strides:
            return case
        dense = case.views.query is QueryView.CONTIGUOUS
        view = QueryView.FUSED_QKV if dense else QueryView.CONTIGUOUS
        return structs.replace(case, views=structs.replace(case.views, query=view))

    def _place_metadata(self, metadata: Metadata) -> dict[str, torch.Tensor]:
        gap = self._case.views.table_gap
        return {
            name: self._bench.memory.copy(name, each, stride=(each.shape[1] + gap, 1) if each.ndim > 1 else None)
            for name, each in metadata.items()
        }

    def _launch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        described = {**tensors, **self._described()}
        arguments = self._writer.arguments(described, self._bench)
        self._bench.launcher.launch(self._writer.op, **arguments)
        if self._writer.restore is not None:
            every = {**described, **arguments}
            self._writer.restore(**Keywords.of(self._writer.restore).select(every, every))

    def _described(self) -> dict[str, Any]:
        """Return the arguments that are the same in each step."""
        cache, scales = self._kv.cache, self._case.scales
        caches: dict[str, Any]
        if (latent := self._case.geometry.latent) is not None:
            caches = {"kv_cache": cache, "rank": latent.rank}
        else:
            key, value = (cache[:, 0], cache[:, 1]) if isinstance(cache, torch.Tensor) else cache
            caches = {"k_cache": key, "v_cache": value}
        k_scales, v_scales = self._kv.scales or (None, None)
        return {
            **caches,
            "k_scale": scales.k,
            "v_scale": scales.v,
            "k_scales": k_scales,
            "v_scales": v_scales,
            "kv_layout": self._case.geometry.kv_layout.value,
        }

    def _refresh(self, static: Mapping[str, torch.Tensor], fresh: Mapping[str, torch.Tensor]) -> None:
        """Write a step's tensors to the beginnings of the static ones; the rest stays from steps before."""
        for name, target in static.items():
            if name in fresh:
                write(target[tuple(map(slice, fresh[name].shape))], fresh[name])

    def _pools(self) -> dict[str, torch.Tensor]:
        """Return the bits of each pool [pages, slots, heads, dim] by name, without the pages in the case's hole."""
        names = ("kv_cache",) if self._case.geometry.latent else ("k_cache", "v_cache", *_SCALES_OF.values())
        # Scales that are given have no pools.
        return dict(zip(names, self._kv.resident(), strict=False))

    def written(self, step: Step, before: Contents) -> WrittenCache:
        """Return the pool before and after a step, whose new tokens are there now, and other results of the kernel."""
        due = tuple(self._due(step, before))
        if self._beside is not None:
            # The names of its pools are the same.
            of_other = {name.removesuffix(_OTHER): bits for name, bits in before.items() if name.endswith(_OTHER)}
            beside = self._beside.written(step, of_other)
            due += tuple(replace(each, name=f"{each.name}{_OTHER}") for each in beside.tensors)
        return WrittenCache(due, self._owners(step), kernel=self._writer.op.name)

    def _owners(self, step: Step) -> tuple[tuple[int, int], ...]:
        """Return the request and the token of each row that is due, as `WrittenCache.tokens` has them."""
        return tuple((place.request, place.token) for place in self._tokens.places(step))

    def _due(self, step: Step, before: Contents) -> Iterator[WrittenTensor]:
        """Yield the contents due to each tensor that the kernel may write."""
        at = self._resident(self.slots(step))
        # A padded token goes to the dummy page, whose index is 0 with and without a hole.
        dummy = self._case.padded_slot is PaddedSlot.DUMMY and step.padded_tokens > at.shape[1]
        after = self._pools()
        rows = torch.tensor([place.row for place in self._tokens.places(step)], dtype=torch.int64)
        bounds = self._bounds(step, [values[rows] for values in self._tokens.values(step)], after, at)
        free = self._free(dummy=dummy)
        for (name, bits), memory in zip(after.items(), self._kv.memory(), strict=True):
            yield replace(self._in_pool(name, before[name], bits, at, bounds[name], free=free), memory=memory)

    def _free(self, *, dummy: bool) -> torch.Tensor:
        """Return the slots [2, n] that may hold anything: the first, if it is a dummy, and other groups' pages.

        Sessions of these judge them. Slots of groups differ, and with it the memory of the first.
        """
        size, pages = self._kv.page_size, self._kv.foreign()
        first = [0] if dummy and not pages else []
        if dummy and pages and DUMMY_PAGE not in pages:
            pages = [DUMMY_PAGE, *pages]
        whole = torch.tensor(pages, dtype=torch.int64)
        at = torch.stack((whole.repeat_interleave(size), torch.arange(size).repeat(len(pages))))
        return torch.cat((torch.tensor([first, first], dtype=torch.int64), self._resident(at)), dim=1)

    def _resident(self, at: torch.Tensor) -> torch.Tensor:
        """Convert places [2, n] to indices of pages with memory, and slots."""
        page, slot = at
        return torch.stack((page - (page >= self._kv.hole.stop) * len(self._kv.hole), slot))

    def _unchanged(self, before: Contents) -> Iterator[WrittenTensor]:
        """Yield the pools of a kernel that stores nothing in them."""
        for name, pool in self._pools().items():
            none = torch.zeros(0, *pool.shape[2:], dtype=self._case.geometry.kv_dtype.torch_dtype)
            yield self._in_pool(name, before[name], pool, _NOWHERE, (none, none))

    def _in_pool(
        self,
        name: str,
        before: torch.Tensor,
        after: torch.Tensor,
        at: torch.Tensor,
        bounds: Bounds,
        *,
        free: torch.Tensor = _NOWHERE,
    ) -> WrittenTensor:
        """Expect new contents `at` some places of a pool; the slots `free` [2, n] may hold anything."""
        low, high = bounds
        return WrittenTensor(
            name=name,
            before=before,
            after=after,
            at=to_device(at, after.device),
            low=(lowest := to_device(low, after.device)),
            high=lowest if high is low else to_device(high, after.device),
            free=to_device(free, after.device),
            hole=self._kv.hole,
            nibbles=self._case.geometry.kv_dtype is DType.FLOAT4_E2M1 and name not in _SCALES_OF.values(),
        )

    def _bounds(
        self, step: Step, values: Sequence[torch.Tensor], after: Contents, at: torch.Tensor
    ) -> dict[str, Bounds]:
        """Bound the new tokens' numbers in each pool.

        Where the writer computes scales, those of the elements follow from the scales that the cache holds.
        """
        scales, due = self._case.scales, dict[str, Bounds]()
        for index, (name, number) in enumerate(zip(after, (scales.k, scales.v), strict=False)):
            pool = _SCALES_OF.get(name, "")
            if pool in after:
                held = after[pool][at[0], at[1]].cpu()
                due[name], due[pool] = self._computed(values[index], number, held)
                continue
            scale: Scale = number
            if self._kv.scales is not None:
                scale = self._kv.scales[index].cpu().unsqueeze(-1).double()
            due[name] = self._stored(step, name, values[index], scale)
        return due

    def _stored(self, step: Step, name: str, values: torch.Tensor, scale: Scale) -> Bounds:
        """Bound the numbers that a pool holds for new tokens."""
        del step, name
        return self._writer.conversion.bounds(values, scale, self._case.geometry.kv_dtype)

    def _computed(self, values: torch.Tensor, number: float, held: torch.Tensor) -> tuple[Bounds, Bounds]:
        """Bound new tokens, and their scales, of which the cache has the bits `held`."""
        conversion, kv_dtype = self._writer.conversion, self._case.geometry.kv_dtype
        if self._case.scales.granularity is Granularity.BLOCK:
            of_blocks = held.view(torch.float8_e4m3fn)
            return conversion.block_numbers(values, number, of_blocks), conversion.block_scales(values, number)
        scale = conversion.scales_held(values, held.view(torch.float32))
        return conversion.bounds(values, scale, kv_dtype), conversion.scales(values)


def watched_rows(tensors: Contents, names: Iterable[str]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Copy the bits of rows [1, rows, heads, dim] before a launch. Returns them, and the rows as it leaves them."""
    bits = {name: tensors[name].view(DType.of(tensors[name].dtype).bits).unsqueeze(0) for name in names}
    return {name: (each.clone(), each) for name, each in bits.items()}


def written_rows(name: str, before: torch.Tensor, after: torch.Tensor, bounds: Bounds) -> WrittenTensor:
    """Expect rows [1, rows, heads, dim], of which the first are due; those of padding may hold anything."""
    low, high = (to_device(each, after.device) for each in bounds)
    rows = torch.arange(after.shape[1], device=after.device)
    places = torch.stack((torch.zeros_like(rows), rows))
    return WrittenTensor(
        name=name,
        before=before,
        after=after,
        at=places[:, : len(low)],
        low=low,
        high=low if bounds[1] is bounds[0] else high,
        free=places[:, len(low) :],
        paged=False,
    )
