"""Revisions of the native writers, before a reported fix: the slots of new tokens as a server computed them then."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from attnfuzz.kernels.cache_writes.native import NATIVE_WRITERS, NativeWriter
from attnfuzz.kernels.cache_writes.new_tokens import Metadata, WriteMetadata
from attnfuzz.kernels.cache_writes.writer_session import WriterSession
from attnfuzz.reference.case import Mode, Step

_PREFILLS: Final = frozenset({Mode.EXTEND, Mode.CHUNKED_PREFILL})


class TranslatesToTombstones(WriteMetadata):
    """SGLang PR #35933: a slot without a counterpart in the window layers' pool becomes -1 instead of slot 0."""

    def of(self, step: Step) -> Metadata:
        """Make the metadata of a step, whose padded tokens have such a slot."""
        metadata = super().of(step)
        slots = metadata["slot_mapping"]
        return metadata | {"slot_mapping": slots.where(slots != 0, -1)}


class PadsBehindTheLastRequest(WriteMetadata):
    """tt-metal issue #56324: the padding of a prefill continues its last request, into pages that it does not own."""

    def of(self, step: Step) -> Metadata:
        """Make the metadata of a step, whose padded tokens go to the positions behind the last request."""
        metadata = super().of(step)
        if step.mode not in _PREFILLS or not step.requests:
            return metadata
        size, end = self._kv.page_size, step.requests[-1].kv_len
        row = metadata["block_tables"][len(step.requests) - 1].long()
        positions = torch.arange(end, end + step.padded_tokens - step.tokens)
        columns = positions // size
        pages = row[columns.clamp(max=len(row) - 1)]
        padding = (pages * size + positions % size).where((columns < len(row)) & (pages >= 0), -1)
        return metadata | {"slot_mapping": torch.cat((metadata["slot_mapping"][: step.tokens], padding))}


class OmitsColumnsOfThePrefix(WriteMetadata):
    """tt-metal PR #55630: the row of a resumed prefill has columns for its new tokens alone, and page 0 behind them."""

    def of(self, step: Step) -> Metadata:
        """Make the metadata of a step, whose tokens are looked up in such rows by their positions."""
        metadata = super().of(step)
        slots, size = metadata["slot_mapping"].clone(), self._kv.page_size
        for index, place in enumerate(self._tokens.places(step) if step.mode in _PREFILLS else ()):
            columns = -(-step.requests[place.request].q_len // size)
            if place.position // size >= columns:
                slots[index] = place.offset
        return metadata | {"slot_mapping": slots}


class WritesReservedSlots(WriterSession):
    """SGLang PRs #32477 and #36003: padded tokens are written to slot 0, which other padding reads."""

    def _described(self) -> dict[str, Any]:
        return {**super()._described(), "reserved_skip_index": -1}


def planned_by(planner: type[WriteMetadata], session: type[WriterSession] = WriterSession) -> type[WriterSession]:
    """Derive the session with another planner."""
    return type("Session", (session,), {"planner_type": planner})


SESSIONS: Final[Mapping[str, type[WriterSession]]] = {
    "native:store_cache@35933-before": planned_by(TranslatesToTombstones),
    "native:reshape_and_cache@56324": planned_by(PadsBehindTheLastRequest),
    "native:reshape_and_cache@55630-before": planned_by(OmitsColumnsOfThePrefix),
    "native:store_cache@32477-before": WritesReservedSlots,
    "native:set_mla@36003-before": WritesReservedSlots,
}
"""The session of each revision."""


def _revision(name: str, session: type[WriterSession]) -> NativeWriter:
    correct = next(writer for writer in NATIVE_WRITERS if writer.name == name.partition("@")[0])
    return replace(correct, label=name, session=session)


WRITER_REVISIONS: Final = tuple(_revision(name, session) for name, session in SESSIONS.items())


def backends() -> tuple[NativeWriter, ...]:
    """Return the native writers and their revisions."""
    return NATIVE_WRITERS + WRITER_REVISIONS
