"""Defects in the chunked prefill of latents: in the list of chunks, the fixup, and the merge."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.planting import DefectGroup
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.planning.lengths import place_int32
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.kernels.trtllm.prefill import Chunk, MlaPrefill, Partial, Queries
from attnfuzz.reference.case import Case
from attnfuzz.reference.mistake import Mistake

DEFECTS: list[Defect] = []

_SHORT_KV = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.SHORT_KV)
_INDICES = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.WRONG_INDEX_SPACE)
_FIXUP_SHORT_KV = DefectGroup(DEFECTS, Layer.FIXUP, BugClass.SHORT_KV)
_MASKS = DefectGroup(DEFECTS, Layer.MASK, BugClass.MASK_ROWS)
_MERGES = DefectGroup(DEFECTS, Layer.MERGE, BugClass.LSE_AND_MERGE)
_WORKSPACES = DefectGroup(DEFECTS, Layer.CONCURRENCY, BugClass.WORKSPACE)


@dataclass(frozen=True)
class FlaggedByFirst(Chunk):
    """A chunk that takes its flag from its first request alone."""

    @property
    def has_zero_kv(self) -> bool:
        """Whether the first request has no keys."""
        return self.lengths[0] == 0


@dataclass(frozen=True)
class FlaggedBy(Chunk):
    """A chunk that takes its flag from another chunk."""

    other: Chunk | None

    @property
    def has_zero_kv(self) -> bool:
        """The flag of the other chunk."""
        return self.other is not None and self.other.has_zero_kv


@_SHORT_KV.add("flag_of_first_request", "SGLang PR #22688")
class FlagsByFirstRequest(MlaPrefill):
    """The first request alone decides whether a chunk is fixed up."""

    def _chunks(self, prefixes: Sequence[int]) -> Sequence[Chunk]:
        return [FlaggedByFirst(chunk.starts, chunk.lengths) for chunk in super()._chunks(prefixes)]


@_SHORT_KV.add("flag_of_previous_chunk", "SGLang PR #22688")
class FlagsByPreviousChunk(MlaPrefill):
    """The previous chunk decides whether a chunk is fixed up."""

    def _chunks(self, prefixes: Sequence[int]) -> Sequence[Chunk]:
        chunks = super()._chunks(prefixes)
        return [
            FlaggedBy(chunk.starts, chunk.lengths, other) for chunk, other in zip(chunks, (None, *chunks), strict=False)
        ]


@_SHORT_KV.add(
    "last_chunk_dropped",
    "vLLM issue #26042 (results depend on the chunk's size)",
    Mistake.KEYS_MISSING,
    Mistake.LSE_OF_A_PART,
)
class DropsLastChunk(MlaPrefill):
    """The last chunk is dropped if it is shorter than the first."""

    def _chunks(self, prefixes: Sequence[int]) -> Sequence[Chunk]:
        chunks = super()._chunks(prefixes)
        return [chunk for chunk in chunks if max(chunk.lengths) == max(chunks[0].lengths)]


@_INDICES.add(
    "chunks_begin_at_zero", "SGLang issue #22291 (chunked prefixes of several prompts)", Mistake.KEYS_REPLACED
)
class RestartsChunks(MlaPrefill):
    """Every chunk begins at the start of the first one."""

    def _chunks(self, prefixes: Sequence[int]) -> Sequence[Chunk]:
        return [Chunk((0,) * len(chunk.starts), chunk.lengths) for chunk in super()._chunks(prefixes)]


@_FIXUP_SHORT_KV.add("fixup_by_key_offsets", "SGLang PR #22688")
class FixesUpByKeyOffsets(MlaPrefill):
    """The fixup gets the offsets of keys instead of those of queries."""

    def _fix_up(self, queries: Queries, part: Partial) -> None:
        offsets = place_int32(self._bench, "cum_seq_lens", [0, *part.seq_lens.cumsum(0).tolist()])
        super()._fix_up(Queries(queries.step, queries.tensor, offsets, queries.max_len), part)


@_MASKS.add(
    "prefix_chunks_causal",
    "FlashInfer issue #3047 (chunked prefixes of MLA)",
    Mistake.KEYS_MISSING,
    Mistake.LSE_OF_A_PART,
)
class ShowsChunksCausally(MlaPrefill):
    """Prefix chunks get a causal mask, like new tokens."""

    def _attend(self, queries: Queries, chunk: Chunk, *, causal: bool, prefix: str = "") -> Partial:
        return super()._attend(queries, chunk, causal=True, prefix=prefix)


@_MERGES.add(
    "merge_of_pairs_of_rows", "vLLM issue #26042 (chunked prefill of MLA)", Mistake.KEYS_MISSING, Mistake.LSE_OF_A_PART
)
class MergesPairsOfRows(MlaPrefill):
    """Rows are merged in pairs, which skips the last of an odd number."""

    def _merge(self, whole: Results, part: Results) -> None:
        pairs = slice(0, whole.out.shape[0] // 2 * 2)
        super()._merge(whole[pairs], part[pairs])


@_MERGES.add("chunk_lse_merged_in_base_e", "SGLang issue #40903, PR #35045", Mistake.MERGE_BASE)
class MergesNaturalLse(MlaPrefill):
    """A base-2 LSE of a chunk is merged as a natural one."""

    def _merge(self, whole: Results, part: Results) -> None:
        part.lse.mul_(math.log(2))
        super()._merge(whole, part)


@_MERGES.add("chunk_lse_in_float16", "FlashInfer, docstring of merge_state (LSE is float32); NATTEN PR #202")
class MergesHalfPrecisionLse(MlaPrefill):
    """A chunk's LSE is kept in float16 until it is merged."""

    def _merge(self, whole: Results, part: Results) -> None:
        part.lse.copy_(part.lse.half())
        super()._merge(whole, part)


@_MERGES.add(
    "first_chunk_merged_twice",
    "SGLang issue #22291 (chunks merged one after another)",
    Mistake.MERGE_WEIGHTS,
    Mistake.KEYS_TWICE,
)
class MergesFirstChunkTwice(MlaPrefill):
    """The first chunk is merged twice."""

    def _attend_to_prefixes(
        self, queries: Queries, chunks: Sequence[Chunk], needs_fixup: Callable[[bool], bool]
    ) -> Iterator[Partial]:
        for index, part in enumerate(super()._attend_to_prefixes(queries, chunks, needs_fixup)):
            yield part
            if index == 0:
                yield part


@_WORKSPACES.add(
    "chunk_buffer_shared", "M* PR #236 (a buffer written before its reader is through)", Mistake.KEYS_REPLACED
)
class SharesChunkBuffer(MlaPrefill):
    """The next chunk is computed before the last one is merged, in the same buffer."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench, workspace: SharedWorkspace) -> None:
        super().__init__(ops, case, bench, workspace)
        self._shared: dict[tuple[str, int], Results] = {}

    def _place_results(self, rows: int, prefix: str) -> Results:
        if not prefix:
            return super()._place_results(rows, prefix)
        return self._shared.setdefault((prefix, rows), super()._place_results(rows, prefix))

    def _attend_to_prefixes(
        self, queries: Queries, chunks: Sequence[Chunk], needs_fixup: Callable[[bool], bool]
    ) -> Iterator[Partial]:
        yield from list(super()._attend_to_prefixes(queries, chunks, needs_fixup))
