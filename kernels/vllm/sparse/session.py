"""A case of sparse attention on a release: each step is planned by its builder, and run by its layer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Attended, Bench, Output
from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.releases.deep_gemm import LOGITS, PAGED_LOGITS
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, code_of
from attnfuzz.kernels.releases.rejection import rejections_of
from attnfuzz.kernels.releases.sparse_latents import ATTEND
from attnfuzz.kernels.sparse.index_cache import cache_content, held_keys, new_keys, written_keys
from attnfuzz.kernels.sparse.inputs import NAN_BYTE, OpInputs, pool_pages
from attnfuzz.kernels.sparse.results import Part, Selected, SparselyAttended, SparseResult, written_rows
from attnfuzz.kernels.vllm.adaptations import PINNED
from attnfuzz.kernels.vllm.runner import WORDS
from attnfuzz.kernels.vllm.server import REMEDY
from attnfuzz.kernels.vllm.sparse.indexer import Indexer
from attnfuzz.kernels.vllm.sparse.kernels import WRITE
from attnfuzz.kernels.vllm.sparse.latents import RANK, SCALE, AttendedLists
from attnfuzz.kernels.vllm.sparse.planner import Planner, rows_in_batch
from attnfuzz.kernels.vllm.sparse.slot_lists import CONVERT, SlotLists, positions_of
from attnfuzz.reference.case import Launch
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse import packed
from attnfuzz.reference.sparse.case import KvFormat, SparseCase, SparseMode, SparseStep
from attnfuzz.reference.sparse.indexer import Scoring
from attnfuzz.reference.sparse.lists import Selection, to_slots

_ALPHA: Final = 2.0**-40
"""The probability that a right kernel leaves the bounds of a step's scores."""


class PlannedSession(ABC):
    """A session on a release's planner.

    Steps that verify the same number of drafts share a server. All others run on that with the most drafts, but
    replayed decodes on one without: graphs are those of uniform batches.
    """

    def __init__(self, loaded: Any, kernels: KernelsBelow, case: SparseCase, bench: Bench) -> None:
        self._loaded, self._case, self._bench = loaded, case, bench
        release = loaded.release
        ASKED.watch(release.root, release.project.title, release.version, PINNED, REMEDY)
        loaded.listen(ASKED.note)
        self._running = code_of(release, bench, kernels)
        self._servers: dict[int, Planner] = {}

    def forward(self, index: int) -> SparseResult:
        """Run one step."""
        inputs = OpInputs(self._case, index)
        self._bench.launcher.reached_by(WORDS[Launch.REPLAY if inputs.step.replayed else Launch.EAGER])
        parts = tuple(self._parts(inputs))
        ASKED.check()
        return SparseResult(parts)

    @abstractmethod
    def _parts(self, inputs: OpInputs) -> Iterator[Part]:
        """Run a step, and yield the results of its ops."""

    @abstractmethod
    def _planner(self, drafts: int) -> Planner:
        """Make a server with `drafts` draft tokens per request."""

    def _lists(self, inputs: OpInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a step. Returns its lists in the order of the batch, where they were written, and their rows."""
        with rejections_of(self._loaded.release), self._running():
            planner = self._server(inputs.step)
            batch = planner.run(inputs)
        rows = rows_in_batch(inputs, batch.order)
        return planner.lists[: len(rows)], rows

    def _server(self, step: SparseStep) -> Planner:
        drafts = self._drafts(step)
        if drafts not in self._servers:
            self._servers[drafts] = self._planner(drafts)
        return self._servers[drafts]

    def _drafts(self, step: SparseStep) -> int:
        """Return the number of draft tokens per request on the server that runs a step."""
        if step.mode is SparseMode.VERIFY:
            return step.queries - 1
        if step.replayed:
            return 0
        return max((each.queries - 1 for each in self._case.steps if each.mode is SparseMode.VERIFY), default=0)


class IndexerSession(PlannedSession):
    """A session on the indexer: its write of new keys, and the lists that it makes of their scores."""

    def __init__(self, loaded: Any, kernels: KernelsBelow, case: SparseCase, bench: Bench) -> None:
        super().__init__(loaded, kernels, case, bench)
        with self._running():
            self._cache = bench.memory.copy("kv_cache", cache_content(OpInputs(case, 0)))

    def _planner(self, drafts: int) -> Planner:
        return Indexer(self._loaded, self._case, self._bench, drafts, self._cache)

    def _parts(self, inputs: OpInputs) -> Iterator[Part]:
        slots = inputs.all_slots[new_keys(inputs)]
        self._bench.memory.overwrite(self._cache, cache_content(inputs, slots))
        before = self._cache.clone()
        (lists, order), tokens = self._lists(inputs), _tokens(inputs)
        yield written_keys(inputs, before, self._cache, tokens, WRITE.name)
        if tokens:
            yield self._selected(inputs, lists, order, tokens)

    def _selected(
        self, inputs: OpInputs, lists: torch.Tensor, order: torch.Tensor, tokens: tuple[tuple[int, int], ...]
    ) -> Selected:
        """Return the lists of the rows of the step in an order, beside the scores of their keys within an error."""
        keys, scales = held_keys(inputs, self._cache)
        rows = [inputs.rows[at] for at in order.tolist()]
        firsts = tuple(inputs.keys_from[row.request] for row in rows)
        lengths = tuple(row.length for row in rows)
        starts = (0,) * len(rows)
        scoring = Scoring(
            inputs.index_queries[order],
            inputs.index_weights[order],
            keys,
            scales,
            firsts,
            starts,
            lengths,
            max(lengths),
        )
        low, high = scoring.bounds(NoiseModel.fp32_arithmetic(), _ALPHA)
        selection = Selection(low, starts, lengths, self._case.geometry.top_k, highest=high)
        # Its arguments decide about the lists.
        kernel = PAGED_LOGITS if inputs.step.mode.batched else LOGITS
        return Selected(
            kernel.name, "topk_indices_buffer", lists, selection, tuple(tokens[at] for at in order.tolist())
        )


class SlotSession(PlannedSession):
    """A session on the conversion of positions to slots of the KV cache."""

    def _planner(self, drafts: int) -> Planner:
        return SlotLists(self._loaded, self._case, self._bench, drafts)

    def _parts(self, inputs: OpInputs) -> Iterator[Part]:
        (lists, order), tokens = self._lists(inputs), _tokens(inputs)
        slots = lists[order.argsort()]
        tables = tuple(inputs.pages[b] for b, _ in tokens)
        right = to_slots(positions_of(inputs), tables, self._case.geometry.page_size)
        before = torch.full_like(slots, -(1 << 31))
        yield written_rows(CONVERT, "slots", before, slots, right, right, tokens)


class AttendedSession(PlannedSession):
    """A session on the attention to lists, of which each step has its own latents in the pool."""

    def __init__(self, loaded: Any, kernels: KernelsBelow, case: SparseCase, bench: Bench) -> None:
        super().__init__(loaded, kernels, case, bench)
        self._latent = case.geometry.format is KvFormat.LATENT
        shape = (pool_pages(case), case.geometry.page_size, 1152 if self._latent else 656)
        pool = bench.memory.copy("kv_cache", torch.full(shape, NAN_BYTE, dtype=torch.uint8))
        self._pool = pool
        self._cache = pool.view(torch.bfloat16) if self._latent else pool

    def _planner(self, drafts: int) -> Planner:
        return AttendedLists(self._loaded, self._case, self._bench, drafts, self._cache)

    def _parts(self, inputs: OpInputs) -> Iterator[Part]:
        own, _ = inputs.contents([request.kv_len for request in inputs.step.requests])
        content = torch.full_like(self._pool, NAN_BYTE)
        content.flatten(0, 1)[inputs.all_slots] = own.flatten(1).contiguous().view(torch.uint8)
        self._bench.memory.overwrite(self._pool, content)
        lists, order = self._lists(inputs)
        planner = self._server(inputs.step)
        assert isinstance(planner, AttendedLists)
        places = order.argsort()
        yield SparselyAttended(
            ATTEND.name, self._attended(inputs, planner.out[: len(lists)][places], own, places >= planner.unpacked_from)
        )

    def _attended(self, inputs: OpInputs, out: torch.Tensor, own: torch.Tensor, unpacked: torch.Tensor) -> Output:
        """Return the output beside the keys of each row, which were rounded if they were `unpacked`."""
        keys = own if self._latent else packed.unpack(own)[:, None]
        rounded = keys.bfloat16()
        attended = []
        for row, entries in enumerate(positions_of(inputs)):
            at = entries[entries >= 0].long() + inputs.keys_from[inputs.rows[row].request]
            seen = (rounded if unpacked[row] else keys)[at]
            attended.append(Attended(row, inputs.queries[row : row + 1], seen, seen[..., :RANK]))
        return Output(out, None, tuple(attended), SCALE, 1.0)


def _tokens(inputs: OpInputs) -> tuple[tuple[int, int], ...]:
    """Return the request of each row, and which of its tokens it is."""
    return tuple((b, j) for b, request in enumerate(inputs.step.requests) for j in range(request.q_len))
