"""Defects of a server's writes into its KV cache: in slots, positions and pages of new tokens, and in replays."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

import torch

from attnfuzz.kernels.cache_writes.native import NativeWriter
from attnfuzz.kernels.cache_writes.new_tokens import Metadata, TokenPlace, WriteMetadata
from attnfuzz.kernels.cache_writes.revisions import planned_by
from attnfuzz.kernels.cache_writes.writer_session import WriterSession
from attnfuzz.kernels.defects.defect import BugClass, Layer, WriteDefect
from attnfuzz.kernels.planning.lengths import running_sum
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE
from attnfuzz.kernels.planning.paged_kv import OtherGroupKv
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.reference.case import Request, Step, Tombstone

DEFECTS: Final[list[WriteDefect]] = []

_RESHAPE, _STORE, _APPEND = "native:reshape_and_cache", "native:store_cache", "native:append"

Tensors = Mapping[str, torch.Tensor]
Part = type[WriterSession] | type[WriteMetadata]
Plant = Callable[[NativeWriter], NativeWriter]
_Mistaken = TypeVar("_Mistaken", bound=Part | Plant)


@dataclass(frozen=True)
class WriteGroup:
    """The defects of one class of bug, collected in `defects`. A defect's title is its docstring."""

    defects: list[WriteDefect]
    bug_class: BugClass

    def add(self, name: str, source: str, backend: str) -> Callable[[_Mistaken], _Mistaken]:
        """Add the decorated session, planner, or function that changes the writer, as a defect of `backend`."""

        def decorate(mistaken: _Mistaken) -> _Mistaken:
            title = inspect.cleandoc(mistaken.__doc__ or "")
            plant = _in_session(mistaken) if isinstance(mistaken, type) else cast("Plant", mistaken)
            self.defects.append(WriteDefect(name, Layer.WRITE, self.bug_class, title, source, backend, plant=plant))
            return mistaken

        return decorate


def _in_session(part: Part) -> Plant:
    if issubclass(part, WriterSession):
        return lambda writer: replace(writer, session=part)
    return lambda writer: replace(writer, session=planned_by(part, writer.session))


_PADDING = WriteGroup(DEFECTS, BugClass.PADDING_SLOTS)
_REPLAYS = WriteGroup(DEFECTS, BugClass.CAPTURE_AND_REPLAY_DIFFER)
_STALE = WriteGroup(DEFECTS, BugClass.STALE_TAILS)
_INDICES = WriteGroup(DEFECTS, BugClass.WRONG_INDEX_SPACE)
_OFFSETS = WriteGroup(DEFECTS, BugClass.INT32_OFFSETS)
_LAYOUTS = WriteGroup(DEFECTS, BugClass.PAGE_LAYOUT)
_TABLES = WriteGroup(DEFECTS, BugClass.TABLE_WIDTH_OR_TAIL)
_STRAY = WriteGroup(DEFECTS, BugClass.STRAY_WRITES)
_DROPPED = WriteGroup(DEFECTS, BugClass.DROPPED_WRITES)
_SCALES = WriteGroup(DEFECTS, BugClass.SCALES)


class OtherSlots(WriteMetadata):
    """A planner that returns wrong slots."""

    def of(self, step: Step) -> Metadata:
        """Return the metadata of a step, with wrong slots."""
        metadata = super().of(step)
        return metadata | {"slot_mapping": self._slots(step, metadata["slot_mapping"])}

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        """Return the wrong slots of a step's tokens, given the right ones."""
        raise NotImplementedError


@_PADDING.add("padded_tokens_to_a_first_page", "rvllm PR #32 (padding that reuses a live slot)", _STORE)
class PadsWithFirstPage(OtherSlots):
    """Padded tokens are written to the first slot of the first request."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        if step.requests:
            slots[step.tokens :] = self._kv.pages[step.requests[0].slot][0] * self._kv.page_size
        return slots


@_PADDING.add("padded_rows_keep_their_pages", "vLLM PR #56734", _RESHAPE)
class PadsWithRowsOfOthers(OtherSlots):
    """Padded tokens are written to the first page of the slot that their page table row held before."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        first = [pages[0] * self._kv.page_size for pages in self._kv.pages.values() if pages]
        for token in range(step.tokens, len(slots)):
            if token < len(first):
                slots[token] = first[token]
        return slots


def _with_slots(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Plant:
    """Return a plant that changes the kernel's slots. `change` gets them and the pool's number of slots."""

    def plant(writer: NativeWriter) -> NativeWriter:
        @functools.wraps(writer.function)
        def function(*, slot_mapping: torch.Tensor, k_cache: torch.Tensor, **arguments: Any) -> Any:
            pages, *inner, _ = k_cache.shape
            slots = pages * inner[arguments["kv_layout"] == "HND"]
            return writer.function(slot_mapping=change(slot_mapping, slots), k_cache=k_cache, **arguments)

        return replace(writer, function=function)

    plant.__doc__ = change.__doc__
    return plant


@_PADDING.add("negative_slot_taken_for_the_first", "SGLang issue #36207 (padding that overwrites slot 0)", _RESHAPE)
@_with_slots
def take_negative_for_first(slots: torch.Tensor, pool_slots: int) -> torch.Tensor:
    """Tokens with slot -1 are written to slot 0."""
    del pool_slots
    return slots.clamp(min=0)


@_PADDING.add("negative_slot_taken_for_the_last", "vLLM issue #43810, TensorRT-LLM PR #16714", _RESHAPE)
@_with_slots
def take_negative_for_last(slots: torch.Tensor, pool_slots: int) -> torch.Tensor:
    """Slot -1 is counted from the end of the pool, like an index in torch."""
    return slots.where(slots >= 0, slots + pool_slots)


@_STALE.add("slots_of_padding_not_refreshed", "Diffulex PR #44", _RESHAPE)
class LeavesSlotsOfPadding(WriterSession):
    """In a replay, padded tokens keep the slots of the last larger step."""

    def _refresh(self, static: Tensors, fresh: Tensors) -> None:
        slots = fresh["slot_mapping"]
        super()._refresh(static, {**fresh, "slot_mapping": slots[slots >= 0]})


class KeepsFirst(WriterSession):
    """A session whose replays keep some tensors of the first replay."""

    kept: tuple[str, ...]

    def _refresh(self, static: Tensors, fresh: Tensors) -> None:
        kept = {name: static[name] for name in self.kept if static[name].any()}
        super()._refresh(static, {**fresh, **{name: each.clone() for name, each in kept.items()}})


@_REPLAYS.add("slots_of_first_replay", "imp PR #1726 (destinations frozen at the capture)", _STORE)
class KeepsFirstSlots(KeepsFirst):
    """Replays write to the slots of the first replay."""

    kept = ("slot_mapping",)


@_REPLAYS.add("pages_of_first_replay", "SGLang PR #26019 (metadata built anew at replay)", _APPEND)
class KeepsFirstPages(KeepsFirst):
    """Replays append to the pages of the first replay."""

    kept = ("kv_indices", "kv_indptr")


@_REPLAYS.add("positions_of_first_replay", "SGLang PR #10892", _APPEND)
class KeepsFirstPositions(KeepsFirst):
    """Replays append at the positions of the first replay."""

    kept = ("positions",)


class OtherPlaces(OtherSlots):
    """A planner that picks a wrong slot for each new token of a request."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        for place in self._tokens.places(step):
            slots[place.row] = self._slot(step, place)
        return slots

    def _slot(self, step: Step, place: TokenPlace) -> int:
        """Return the slot of a token."""
        raise NotImplementedError

    def _at(self, pages: Sequence[int], position: int) -> int:
        """Return the slot of a position; positions past the pages stay on the last page."""
        size = self._kv.page_size
        return pages[min(position // size, len(pages) - 1)] * size + position % size


@_INDICES.add("drafts_written_behind_the_keys", "vllm-ascend PR #11699", _RESHAPE)
class WritesDraftsBehindKeys(OtherPlaces):
    """The new tokens of a request are written from the position of its last one."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        request = step.requests[place.request]
        return self._at(self._kv.pages[request.slot], place.position + request.q_len - 1)


@_INDICES.add("prefix_left_out_of_positions", "vLLM PR #54519 (positions that do not count every token)", _STORE)
class CountsFromZero(OtherPlaces):
    """New tokens are written to the first slots of a request, over its prefix."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        return self._at(self._kv.pages[step.requests[place.request].slot], place.token)


@_INDICES.add("rows_taken_for_slots_of_requests", "SGLang PR #26534", _RESHAPE)
class TakesRowsForSlots(OtherPlaces):
    """The pages of a request are looked up by its batch row."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        request = step.requests[place.request]
        return self._at(self._kv.pages.get(place.request) or self._kv.pages[request.slot], place.position)


@_INDICES.add("one_slot_for_a_request", "sglang-omni issue #1704 (slots that are shared)", _STORE)
class TakesOneSlot(OtherPlaces):
    """All new tokens of a request are written to the slot of its last one."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        request = step.requests[place.request]
        return self._at(self._kv.pages[request.slot], request.kv_len - 1)


@_LAYOUTS.add("pages_twice_as_large", "vllm-gaudi PR #1323, vLLM PR #41657", _RESHAPE)
class TakesLargerPages(OtherPlaces):
    """Slots are computed for pages of twice the size."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        size = 2 * self._kv.page_size
        page = self._kv.pages[step.requests[place.request].slot][place.position // size]
        return page * size + place.position % size


@_INDICES.add("slots_sorted", "ProjectDMX/DMI issue #67 (rows of vLLM's batch in another order)", _STORE)
class SortsSlots(OtherSlots):
    """Slots are in pool order, but tokens are in batch order."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        slots[: step.tokens] = slots[: step.tokens].sort().values
        return slots


@_OFFSETS.add("slots_wrap", "vLLM issue #1486", _RESHAPE)
class WrapsSlots(OtherSlots):
    """Slots wrap at 512. Stands for 16-bit and 32-bit slots, scaled down to small cases."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        return slots.where(slots < 0, slots % 512)


@_DROPPED.add("mapping_cut_to_the_requests", "vllm-ascend PR #16775 (a mapping cut to the local tokens)", _RESHAPE)
class CutsMapping(OtherSlots):
    """The slot mapping has one entry per request, so further tokens are not written."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        slots[len(step.requests) :] = -1
        return slots


@_INDICES.add("appended_one_position_late", "vLLM PR #54716 (slots from lengths instead of positions)", _APPEND)
class AppendsLate(WriteMetadata):
    """The position of a token is counted from 1."""

    def of(self, step: Step) -> Metadata:
        """Return the metadata of a step, with later positions."""
        metadata = super().of(step)
        metadata["positions"][: step.tokens] += 1
        return metadata


@_TABLES.add("partial_page_not_appended_to", "MaxText PR #1777 (pages by floor division)", _APPEND)
class FloorsPagesOfRows(WriteMetadata):
    """A partial last page is missing from the pages of a request."""

    def _of_rows(self, rows: Sequence[Row]) -> Metadata:
        size = self._kv.page_size
        pages = [[DUMMY_PAGE] if row.slot is None else self._kv.pages[row.slot][: row.kv_len // size] for row in rows]
        columns = {"kv_indices": [page for owned in pages for page in owned], "kv_indptr": running_sum(map(len, pages))}
        wrong = {name: torch.tensor(each, dtype=torch.int32) for name, each in columns.items()}
        return super()._of_rows(rows) | wrong


@_SCALES.add("scales_of_k_and_v_swapped", "vLLM PR #55557 (a test that catches the swap)", _RESHAPE)
class SwapsScales(WriterSession):
    """The scales of K and V are swapped."""

    def _described(self) -> dict[str, Any]:
        right = super()._described()
        return {**right, "k_scale": right["v_scale"], "v_scale": right["k_scale"]}


@_SCALES.add("new_tokens_scaled_in_place", "SGLang PR #26089 (a kernel that updates its input)", _STORE)
def scale_in_place(writer: NativeWriter) -> NativeWriter:
    """New tokens are divided by the scale in place, in their own dtype."""

    @functools.wraps(writer.function)
    def function(*, key: torch.Tensor, value: torch.Tensor, k_scale: float, v_scale: float, **arguments: Any) -> Any:
        key.div_(k_scale)
        value.div_(v_scale)
        return writer.function(key=key, value=value, k_scale=1.0, v_scale=1.0, **arguments)

    return replace(writer, function=function)


@_INDICES.add("new_tokens_not_translated", "SGLang PR #23984", _STORE)
class WritesSlotsOfFullPool(OtherPlaces):
    """New tokens of a windowed layer are written to their slots in the pool of the other layers."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        return self._at(self._kv.full_pages[step.requests[place.request].slot], place.position)


@_STALE.add("slots_translated_as_before", "SGLang PR #25889 (a translation that is cached)", _STORE)
class TranslatesSlotsAsBefore(OtherPlaces):
    """Slots are translated by the mapping of the previous step; slots on new pages become slot 0."""

    _known: Mapping[int, int] | None = None

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        mapping = (
            {self._full_page(step, place): place.page for place in self._tokens.places(step)}
            if self._case.pages.tombstone is not Tombstone.NONE
            else {}
        )
        found = super()._slots(step, slots)
        self._known = mapping
        return found

    def _slot(self, step: Step, place: TokenPlace) -> int:
        known, size = self._known, self._kv.page_size
        page = place.page if not known else known.get(self._full_page(step, place), DUMMY_PAGE)
        return page * size + place.offset if page else 0

    def _full_page(self, step: Step, place: TokenPlace) -> int:
        return self._kv.full_pages[step.requests[place.request].slot][place.position // self._kv.page_size]


class WritesTombstones(OtherSlots):
    """A planner that gives slots to new tokens that have already left the window."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        stored, row = {place.row for place in self._tokens.places(step)}, 0
        for request in step.requests:
            for position in range(request.kv_len - request.q_len, request.kv_len):
                if row not in stored:
                    slots[row] = self._slot(request, position)
                row += 1
        return slots

    def _slot(self, request: Request, position: int) -> int:
        """Return the slot of a token that should not be stored."""
        raise NotImplementedError


@_PADDING.add("tombstone_times_page_size", "SGLang PR #35933", _STORE)
class MultipliesTombstones(WritesTombstones):
    """The page of a token that has left the window is -1, so its slot is before the pool."""

    def _slot(self, request: Request, position: int) -> int:
        return position % self._kv.page_size - self._kv.page_size


@_STRAY.add("tombstone_written_through", "vLLM issue #42273 (ids that eviction leaves in a table)", _RESHAPE)
class WritesThroughTombstones(WritesTombstones):
    """New tokens that have left the window are written to the slots that the request had there first."""

    def _slot(self, request: Request, position: int) -> int:
        pages, size = self._kv.full_pages[request.slot], self._kv.page_size
        return pages[position // size] * size + position % size


@_INDICES.add("head_of_a_request_stored_for_its_tail", "SGLang PR #30013 (the live tail of a chunk)", _RESHAPE)
class StoresHead(OtherSlots):
    """If only the last tokens of a step are to be stored, the first ones are written to their slots."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        first = 0
        for request in step.requests:
            own = slots[first : first + request.q_len]
            stored = own[own > 0]
            own.fill_(-1)
            own[: len(stored)] = stored
            first += request.q_len
        return slots


class OfOtherGroup(OtherPlaces):
    """A planner that picks wrong slots for the tokens of the second group of layers in a pool."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        return super()._slots(step, slots) if isinstance(self._kv, OtherGroupKv) else slots


@_INDICES.add("slots_of_the_first_group", "vllm-metal PR #545 (group 0 for all layers)", _RESHAPE)
class TakesSlotsOfFirstGroup(OfOtherGroup):
    """The second layer group gets the slots of the first."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        assert isinstance(self._kv, OtherGroupKv)
        owner = self._kv.owner
        page = owner.pages[step.requests[place.request].slot][place.position // owner.page_size]
        return page * owner.page_size + place.position % owner.page_size


@_LAYOUTS.add("page_size_of_the_first_group", "vLLM PR #27547 (sizes of manager and kernel confused)", _RESHAPE)
class TakesPageSizeOfFirstGroup(OfOtherGroup):
    """The slots of the second layer group are computed with the page size of the first."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        assert isinstance(self._kv, OtherGroupKv)
        return place.page * self._kv.owner.page_size + place.offset


@_LAYOUTS.add("strides_of_the_first_group", "kvcached PR #396 (views of one pool for each group)", _RESHAPE)
class TakesStridesOfFirstGroup(WriterSession):
    """The second layer group's view of the pool has the strides of the first."""

    def _described(self) -> dict[str, Any]:
        right = super()._described()
        if not isinstance(self._kv, OtherGroupKv):
            return right
        cache = self._kv.owner.cache
        pools = cache.unbind(1) if isinstance(cache, torch.Tensor) else cache
        names = ("k_cache", "v_cache")
        return {**right, **{name: _strided(right[name], pool) for name, pool in zip(names, pools, strict=True)}}


def _strided(pool: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the pool at the strides of another, without its last page, after which there may be no memory."""
    pages, *inner = pool.shape
    return pool.as_strided((pages - 1, *inner), other.stride())
