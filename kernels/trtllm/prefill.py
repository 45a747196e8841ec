"""MLA prefill: causal attention to a request's new tokens, merged with attention to its prefix, chunk by chunk."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from attnfuzz.kernels.interface.backend import Bench, Output
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.planning.lengths import longest, place_int32, running_sum
from attnfuzz.kernels.planning.queries import BmmScales, draw_queries, packed_rows, place_queries, softmax_scale
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.reference.case import Case, Step


@dataclass(frozen=True)
class Chunk:
    """Prefix tokens [starts[b], starts[b] + lengths[b]) of each request b."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def has_zero_kv(self) -> bool:
        """Whether a request has no key in this chunk. Known on the CPU, so that no layer has to synchronise."""
        return 0 in self.lengths


def chunk_prefixes(prefixes: Sequence[int], capacity: int) -> list[Chunk]:
    """Cut prefixes of these lengths into chunks of at most `capacity` tokens over all requests.

    SGLang's rule (prepare_chunked_prefix_cache_info): a chunk holds `capacity // batch` prefix tokens of every request.
    A request whose prefix has ended has no keys in later chunks, while others still do.
    """
    if not any(prefixes):
        return []
    length = max(1, capacity // len(prefixes))
    count = -(-max(prefixes) // length)
    return [
        Chunk(
            starts=tuple(min(index * length, prefix) for prefix in prefixes),
            lengths=tuple(max(0, min(prefix - index * length, length)) for prefix in prefixes),
        )
        for index in range(count)
    ]


@dataclass(frozen=True)
class Queries:
    """A step's queries [rows, heads, nope + rope], their cumulative lengths int32 [batch + 1], and the longest."""

    step: Step
    tensor: torch.Tensor
    cum_seq_lens: torch.Tensor
    max_len: int


@dataclass(frozen=True)
class Partial:
    """Attention to some keys, with lse in base 2, and the number of keys per request: int32 [batch]."""

    results: Results
    seq_lens: torch.Tensor


class MlaPrefill:
    """Prefill on the ragged kernel. Keys [n, heads, nope + rope] and values [n, heads, vo] are gathered per launch."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench, workspace: SharedWorkspace) -> None:
        latent = case.geometry.latent
        assert latent is not None
        self._ops, self._case, self._bench, self._workspace, self._latent = ops, case, bench, workspace, latent
        # Projections from the cache are not quantised.
        self._scales = BmmScales(bmm1_scale=softmax_scale(case), bmm2_scale=1.0)
        self._drawn: SlotTokens | None = None

    def forward(self, index: int, needs_fixup: Callable[[bool], bool]) -> Output:
        """Run prefill step `index`; `needs_fixup` returns whether a chunk is fixed up, from its zero-KV flag."""
        queries = self._queries(index)
        step = queries.step
        prefixes = [request.kv_len - request.q_len for request in step.requests]
        own = Chunk(starts=tuple(prefixes), lengths=tuple(request.q_len for request in step.requests))
        whole = self._attend(queries, own, causal=True).results
        # The kernel writes only the planned rows; servers assert on the whole output.
        whole[step.tokens :].clear()
        chunks = self._chunks(prefixes)
        for part in self._attend_to_prefixes(queries, chunks, needs_fixup):
            self._merge(whole[: step.tokens], part.results[: step.tokens])
        attended = self._tokens.attended(step, queries.tensor, packed_rows(step))
        roundings = 1 + len(chunks)
        return Output(out=whole.out, lse=whole.lse, attended=attended, roundings=roundings, **self._scales)

    def _chunks(self, prefixes: Sequence[int]) -> Sequence[Chunk]:
        return chunk_prefixes(prefixes, self._case.chunk_capacity)

    def _attend_to_prefixes(
        self, queries: Queries, chunks: Sequence[Chunk], needs_fixup: Callable[[bool], bool]
    ) -> Iterator[Partial]:
        """Yield the attention to one chunk after another, computed lazily, with unwritten rows fixed up."""
        for chunk in chunks:
            part = self._attend(queries, chunk, causal=False, prefix="chunk_")
            if needs_fixup(chunk.has_zero_kv):
                self._fix_up(queries, part)
            yield part

    def _queries(self, index: int) -> Queries:
        step = self._case.steps[index]
        q_lens = [request.q_len for request in step.requests]
        drawn = draw_queries(self._case, index, step.padded_tokens, self._latent.nope + self._latent.rope)
        with self._bench.memory.at_once():
            return Queries(
                step=step,
                tensor=place_queries(self._case, self._bench, drawn),
                cum_seq_lens=place_int32(self._bench, "cum_seq_lens_q", running_sum(q_lens)),
                max_len=longest(q_lens) + self._case.max_len_slack,
            )

    def _attend(self, queries: Queries, chunk: Chunk, *, causal: bool, prefix: str = "") -> Partial:
        with self._bench.memory.at_once():
            part = Partial(
                seq_lens=place_int32(self._bench, "seq_lens", chunk.lengths),
                results=self._place_results(queries.tensor.shape[0], prefix),
            )
        key, value = self._gather(queries.step, chunk)
        self._launch(queries, chunk, (key, value), part, causal=causal)
        return part

    def _launch(
        self, queries: Queries, chunk: Chunk, keys: tuple[torch.Tensor, torch.Tensor], part: Partial, *, causal: bool
    ) -> None:
        """Attend to a chunk's packed keys and values, with results in `part`."""
        key, value = keys
        self._bench.launcher.launch(
            self._ops.ragged,
            query=queries.tensor,
            key=key,
            value=value,
            workspace_buffer=self._workspace.take(self._ops.prefill_workspace),
            seq_lens=part.seq_lens,
            max_q_len=queries.max_len,
            max_kv_len=longest(chunk.lengths) + self._case.max_len_slack,
            o_sf_scale=1.0,
            batch_size=len(chunk.lengths),
            window_left=-1,
            cum_seq_lens_q=queries.cum_seq_lens,
            cum_seq_lens_kv=place_int32(self._bench, "cum_seq_lens_kv", self._key_offsets(chunk)),
            enable_pdl=False,
            is_causal=causal,
            return_lse=True,
            out=part.results.out,
            lse=part.results.lse,
            **self._launched_scales(),
        )

    def _key_offsets(self, chunk: Chunk) -> list[int]:
        """Return the beginning of each request's packed keys, and the end of the last one's."""
        return running_sum(chunk.lengths)

    def _place_results(self, rows: int, prefix: str) -> Results:
        return Results.place(self._case, self._bench, rows, dim=self._latent.vo, prefix=prefix)

    def _launched_scales(self) -> BmmScales:
        """Return the factors that a launch gets."""
        return self._scales

    def _fix_up(self, queries: Queries, part: Partial) -> None:
        self._bench.launcher.launch(
            self._ops.fixup,
            out=part.results.out,
            lse=part.results.lse,
            kv_lens=part.seq_lens,
            cum_seq_lens=queries.cum_seq_lens,
            max_seq_len=queries.max_len,
        )

    def _merge(self, whole: Results, part: Results) -> None:
        self._bench.launcher.launch(
            self._ops.merge_state_in_place, v=whole.out, s=whole.lse, v_other=part.out, s_other=part.lse
        )

    @property
    def _tokens(self) -> SlotTokens:
        """Keys and values of all sequences, as if projected from the latents, drawn at the first prefill."""
        if self._drawn is None:
            geometry, latent = self._case.geometry, self._latent
            self._drawn = SlotTokens(
                self._case,
                heads=geometry.q_heads,
                key_dim=latent.nope + latent.rope,
                value_dim=latent.vo,
                dtype=geometry.dtype,
                part=1,
            )
        return self._drawn

    def _gather(self, step: Step, chunk: Chunk) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a chunk's keys and values, packed, in guarded memory."""
        tokens = self._tokens
        spans = (
            tokens.spans[request.slot][start : start + length]
            for request, start, length in zip(step.requests, chunk.starts, chunk.lengths, strict=True)
        )
        at = torch.tensor(list(chain.from_iterable(spans)), dtype=torch.long)
        memory = self._bench.memory
        with memory.at_once():
            return memory.copy("key", tokens.key[at]), memory.copy("value", tokens.value[at])
