"""Defects of a server's writes into its KV cache: in slots, positions and pages of new tokens, and in replays."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

import torch

from attnfuzz.kernels.cache_writes.native import NativeWriter
from attnfuzz.kernels.cache_writes.new_tokens import Metadata, TokenPlace, WriteMetadata
from attnfuzz.kernels.cache_writes.rope_session import RopeMetadata, RotationSession
from attnfuzz.kernels.cache_writes.writer_session import WriterSession
from attnfuzz.kernels.defects.defect import BugClass, Layer, WriteDefect
from attnfuzz.kernels.lengths import running_sum
from attnfuzz.kernels.paged_kv import DUMMY_PAGE
from attnfuzz.kernels.plan import Row
from attnfuzz.reference.case import Step

DEFECTS: Final[list[WriteDefect]] = []

_RESHAPE, _STORE, _APPEND = "native:reshape_and_cache", "native:store_cache", "native:append"

Tensors = Mapping[str, torch.Tensor]
Part = type[WriterSession] | type[WriteMetadata]
Plant = Callable[[NativeWriter], NativeWriter]
_Mistaken = TypeVar("_Mistaken", bound=Part | Plant)


@dataclass(frozen=True)
class _Group:
    """The defects of one class of bug; a defect's title is its docstring."""

    bug_class: BugClass

    def add(self, name: str, source: str, backend: str) -> Callable[[_Mistaken], _Mistaken]:
        """Add the decorated session, planner, or function, which changes the writer, as a defect of `backend`."""

        def decorate(mistaken: _Mistaken) -> _Mistaken:
            title = inspect.cleandoc(mistaken.__doc__ or "")
            plant = _in_session(mistaken) if isinstance(mistaken, type) else cast("Plant", mistaken)
            DEFECTS.append(WriteDefect(name, Layer.WRITE, self.bug_class, title, source, backend, plant=plant))
            return mistaken

        return decorate


def _in_session(part: Part) -> Plant:
    if issubclass(part, WriterSession):
        return lambda writer: replace(writer, session=part)
    return lambda writer: replace(writer, session=_planned_by(part, writer.session))


def _planned_by(planner: type[WriteMetadata], session: type[WriterSession]) -> type[WriterSession]:
    class Session(session):  # type: ignore[misc, valid-type]
        def _planner(self) -> WriteMetadata:
            return planner(self._case, self._kv, self._tokens)

    return Session


_PADDING = _Group(BugClass.PADDING_SLOTS)
_REPLAYS = _Group(BugClass.CAPTURE_AND_REPLAY_DIFFER)
_STALE = _Group(BugClass.STALE_TAILS)
_INDICES = _Group(BugClass.WRONG_INDEX_SPACE)
_OFFSETS = _Group(BugClass.INT32_OFFSETS)
_LAYOUTS = _Group(BugClass.PAGE_LAYOUT)
_TABLES = _Group(BugClass.TABLE_WIDTH_OR_TAIL)
_DROPPED = _Group(BugClass.DROPPED_WRITES)
_SCALES = _Group(BugClass.SCALES)
_ROPE = _Group(BugClass.ROPE)


class OtherSlots(WriteMetadata):
    """A planner of other slots than the right ones."""

    def of(self, step: Step) -> Metadata:
        """The metadata of a step, with other slots."""
        metadata = super().of(step)
        return metadata | {"slot_mapping": self._slots(step, metadata["slot_mapping"])}

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        """Return the wrong slots of a step's tokens, given the right ones."""
        raise NotImplementedError


@_PADDING.add("padded_tokens_to_a_first_page", "rvllm PR #32 (padding that reuses a live slot)", _STORE)
class PadsWithFirstPage(OtherSlots):
    """Padded tokens go to the first slot of the first request."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        if step.requests:
            slots[step.tokens :] = self._kv.pages[step.requests[0].slot][0] * self._kv.page_size
        return slots


@_PADDING.add("padded_rows_keep_their_pages", "vLLM PR #56734", _RESHAPE)
class PadsWithRowsOfOthers(OtherSlots):
    """Padded tokens go to the first page of the slot that their row of the page table belonged to."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        first = [pages[0] * self._kv.page_size for pages in self._kv.pages.values() if pages]
        for token in range(step.tokens, len(slots)):
            if token < len(first):
                slots[token] = first[token]
        return slots


def _with_slots(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Plant:
    """Plant a change of the slots that the kernel takes, given them and the number of slots of the pool."""

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
    """Slot -1 is counted from the end of the pool, as torch does."""
    return slots.where(slots >= 0, slots + pool_slots)


@_STALE.add("slots_of_padding_not_refreshed", "Diffulex PR #44", _RESHAPE)
class LeavesSlotsOfPadding(WriterSession):
    """The slots of a replay's padded tokens stay those of the last larger step."""

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
    """Replays write to the slots of the first one."""

    kept = ("slot_mapping",)


@_REPLAYS.add("pages_of_first_replay", "SGLang PR #26019 (metadata built anew at replay)", _APPEND)
class KeepsFirstPages(KeepsFirst):
    """Replays append to the pages of the first one."""

    kept = ("kv_indices", "kv_indptr")


@_REPLAYS.add("positions_of_first_replay", "SGLang PR #10892", _APPEND)
class KeepsFirstPositions(KeepsFirst):
    """Replays append at the positions of the first one."""

    kept = ("positions",)


class OtherPlaces(OtherSlots):
    """A planner that takes another slot for each new token of a request."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        for index, place in enumerate(self._tokens.places(step)):
            slots[index] = self._slot(step, place)
        return slots

    def _slot(self, step: Step, place: TokenPlace) -> int:
        """Return the slot of a token."""
        raise NotImplementedError

    def _at(self, pages: Sequence[int], position: int) -> int:
        """The slot of a position; positions past the pages stay on the last one."""
        size = self._kv.page_size
        return pages[min(position // size, len(pages) - 1)] * size + position % size


@_INDICES.add("drafts_written_behind_the_keys", "vllm-ascend PR #11699", _RESHAPE)
class WritesDraftsBehindKeys(OtherPlaces):
    """The new tokens of a request begin at its last one's position."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        request = step.requests[place.request]
        return self._at(self._kv.pages[request.slot], place.position + request.q_len - 1)


@_INDICES.add("prefix_left_out_of_positions", "vLLM PR #54519 (positions that do not count every token)", _STORE)
class CountsFromZero(OtherPlaces):
    """New tokens are written to a request's first slots, over its prefix."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        return self._at(self._kv.pages[step.requests[place.request].slot], place.token)


@_INDICES.add("rows_taken_for_slots_of_requests", "SGLang PR #26534", _RESHAPE)
class TakesRowsForSlots(OtherPlaces):
    """The pages of a request are looked up by its row of the batch."""

    def _slot(self, step: Step, place: TokenPlace) -> int:
        request = step.requests[place.request]
        return self._at(self._kv.pages.get(place.request) or self._kv.pages[request.slot], place.position)


@_INDICES.add("one_slot_for_a_request", "sglang-omni issue #1704 (slots that are shared)", _STORE)
class TakesOneSlot(OtherPlaces):
    """All new tokens of a request go to the slot of its last one."""

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
    """Slots are in the order of the pool, but tokens in that of the batch."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        slots[: step.tokens] = slots[: step.tokens].sort().values
        return slots


@_OFFSETS.add("slots_wrap", "vLLM issue #1486", _RESHAPE)
class WrapsSlots(OtherSlots):
    """Slots wrap at 512: a stand-in, at the size of small cases, for 16 and 32 bits."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        return slots.where(slots < 0, slots % 512)


@_DROPPED.add("mapping_cut_to_the_requests", "vllm-ascend PR #16775 (a mapping cut to the local tokens)", _RESHAPE)
class CutsMapping(OtherSlots):
    """The slot mapping has an entry per request: further tokens are not written."""

    def _slots(self, step: Step, slots: torch.Tensor) -> torch.Tensor:
        slots[len(step.requests) :] = -1
        return slots


@_ROPE.add("rope_shift_ignored", "VeloxQuant-MLX PR #138", "native:rope_append_mla")
class RotatesByPlace(RopeMetadata):
    """A token's place in the cache is taken for its position."""

    def _of_tokens(self, step: Step, rows: int) -> Metadata:
        metadata = super()._of_tokens(step, rows)
        return metadata | {"rope_positions": metadata["positions"].long()}


@_ROPE.add("rope_position_of_padding", "ColossalAI PR #6444 (positions beside the tokens)", "native:rope_append")
class RotatesByPadding(RopeMetadata):
    """Positions of padding come first, so that tokens are rotated by those of others."""

    def _of_tokens(self, step: Step, rows: int) -> Metadata:
        metadata = super()._of_tokens(step, rows)
        return metadata | {"rope_positions": metadata["rope_positions"].roll(step.padded_tokens - step.tokens)}


@_ROPE.add("rope_positions_of_first_replay", "SGLang PR #10892", "native:rope_quantise")
class KeepsFirstRopePositions(KeepsFirst, RotationSession):
    """Replays rotate by the positions of the first one."""

    kept = ("rope_positions",)


@_ROPE.add("rotated_key_not_written_back", "SGLang PR #19636", "native:rope_store")
def leave_key(writer: NativeWriter) -> NativeWriter:
    """Keys are rotated in the cache alone, and not in the tensor that attention reads."""

    @functools.wraps(writer.function)
    def function(*, key: torch.Tensor, **arguments: Any) -> Any:
        return writer.function(key=key.clone(), **arguments)

    return replace(writer, function=function)


@_INDICES.add("appended_one_position_late", "vLLM PR #54716 (slots from lengths instead of positions)", _APPEND)
class AppendsLate(WriteMetadata):
    """A token's position is counted from 1."""

    def of(self, step: Step) -> Metadata:
        """The metadata of a step, with later positions."""
        metadata = super().of(step)
        metadata["positions"][: step.tokens] += 1
        return metadata


@_TABLES.add("partial_page_not_appended_to", "MaxText PR #1777 (pages by floor division)", _APPEND)
class FloorsPagesOfRows(WriteMetadata):
    """A partial last page is left out of the pages of a request."""

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
