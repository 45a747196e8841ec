"""A case of sparse attention on a release: each step is planned, scored and attended to by the release's own code."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final
from unittest import mock

import torch

from attnfuzz.kernels.interface.backend import Attended, Bench, Output
from attnfuzz.kernels.releases import deep_gemm
from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.releases.entry_points_below import Below, KernelsBelow
from attnfuzz.kernels.releases.recording import Recording, outside
from attnfuzz.kernels.releases.rejection import rejections_of
from attnfuzz.kernels.releases.sparse_latents import ATTEND, decode_lists
from attnfuzz.kernels.sglang.graphs import ServedGraphs
from attnfuzz.kernels.sglang.loader import Loaded
from attnfuzz.kernels.sglang.session import SglangSession
from attnfuzz.kernels.sglang.sparse.indexer import SparseInputs, blank_inputs, inputs_of, latents_of, make_indexer
from attnfuzz.kernels.sglang.sparse.kernels import STORE
from attnfuzz.kernels.sglang.sparse.kinds import DsaKind
from attnfuzz.kernels.sglang.sparse.pool import SparsePool
from attnfuzz.kernels.sglang.sparse.server import SparseServer
from attnfuzz.kernels.sglang.sparse.steps import capture_of, drafts_of, served
from attnfuzz.kernels.sglang.sparse.writes import written_latents
from attnfuzz.kernels.sparse.index_cache import held_keys, written_keys
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.kernels.sparse.results import Part, Selected, SparselyAttended, SparseResult
from attnfuzz.reference.case import Launch, Step
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse import packed
from attnfuzz.reference.sparse.case import KvFormat, SparseCase
from attnfuzz.reference.sparse.indexer import Scoring
from attnfuzz.reference.sparse.lists import Selection

_HOPPER: Final = (9, 0)

_OF_BLACKWELL: Final = "flashinfer.decode.trtllm_batch_decode_with_kv_cache_mla"
"""A backend imports it when it is called (0.5.23: layers/attention/dsa_backend.py:3820)."""

_ALPHA: Final = 2.0**-40
"""The probability that a right kernel leaves the bounds of a step's scores."""


class _SparseGraphs(ServedGraphs):
    """Graphs whose inputs are those of an indexer and of sparse attention."""

    def __init__(self, server: SparseServer, planner: Any) -> None:
        super().__init__(server, planner)
        self._sparse = server.sparse

    def _inputs(self, step: Step, rows: int) -> Any:
        del step
        return SparseInputs.place(self._bench, blank_inputs(self._sparse, rows))


class DsaSession:
    """A session on the servers of a case, each with another number of draft tokens."""

    def __init__(self, loaded: Loaded, kernels: KernelsBelow, case: SparseCase, bench: Bench) -> None:
        self._loaded, self._kernels, self._case, self._bench = loaded, kernels, case, bench
        self._servers: dict[int, _OnServer] = {}
        self._last = -1

    def forward(self, index: int) -> SparseResult:
        """Run one step on its server."""
        drafts = drafts_of(self._case, self._case.steps[index])
        if drafts not in self._servers:
            self._servers[drafts] = _OnServer(self._loaded, self._kernels, self._case, drafts, self._bench)
        elif self._last != drafts:
            self._servers[drafts].begin()
        self._last = drafts
        before = [each for each in self._case.steps[:index] if drafts_of(self._case, each) == drafts]
        return self._servers[drafts].forward(len(before))


class _OnServer(SglangSession):
    """The steps of one server: its indexer, its top-k, and its attention to the lists."""

    _server: SparseServer

    def __init__(self, loaded: Loaded, kernels: KernelsBelow, sparse: SparseCase, drafts: int, bench: Bench) -> None:
        self._sparse = sparse
        super().__init__(loaded, kernels, served(sparse, drafts, drafting=_kind_of(loaded).drafting), bench)
        with self._running():
            self._indexer = make_indexer(loaded, sparse)
        self._captured: set[int] = set()
        self._now = OpInputs(sparse, 0)
        self._names: Naming | None = None
        self._made = self._right = torch.zeros(0, 0, dtype=torch.int32)

    def begin(self) -> None:
        """Make the process that of this server, after steps on another one."""
        with self._running():
            self._server.begin()

    def _make_server(self) -> SparseServer:
        return SparseServer(self._loaded, self._sparse, self._case, self._bench)

    def _make_graphs(self) -> ServedGraphs:
        return _SparseGraphs(self._server, self._orders.planner)

    @contextmanager
    def _running(self) -> Iterator[Below]:
        """Run code of the release, which asks whether its tensors are on a GPU."""
        kind = _kind_of(self._loaded)
        with (
            super()._running() as lower,
            mock.patch.object(torch.Tensor, "is_cuda", True, create=True),
            mock.patch.object(torch.cuda, "get_device_capability", return_value=kind.gpu),
            mock.patch.dict(os.environ, kind.environment),
            mock.patch(_OF_BLACKWELL, decode_lists) if kind.gpu > _HOPPER else nullcontext(),
        ):
            yield lower

    def forward(self, index: int) -> SparseResult:  # type: ignore[override]
        """Run one step, in a graph that is captured before its first use."""
        step = self._case.steps[index]
        self._now = self._pool.inputs_of(step)
        with rejections_of(self._loaded.release), self._running():
            if step.launch is Launch.REPLAY:
                capture = capture_of(self._case, step)
                if capture not in self._captured:
                    self._run(capture, self._case.steps[capture])
                    self._captured.add(capture)
            result: Any = self._run(index, step)
        ASKED.check()
        assert isinstance(result, SparseResult)
        return result

    @property
    def _pool(self) -> SparsePool:
        assert isinstance(self._server.pool, SparsePool)
        return self._server.pool

    def _inputs(self, index: int, rows: int, batch: Any) -> Any:
        return SparseInputs.place(self._bench, inputs_of(self._pool.inputs_of(self._case.steps[index]), rows))

    def _attend(self, backend: Any, batch: Any, inputs: Any) -> torch.Tensor:
        """Run the indexer, and the attention to right lists."""
        geometry = self._sparse.geometry
        naming = Naming(backend, batch)
        lists = self._indexer.lists(batch, inputs)

        def correct() -> None:
            with outside():
                self._names = naming
                self._correct(lists)

        recording = Recording.current()
        if recording is None:
            correct()
        else:
            recording.keep(correct)
        rank = geometry.value_dim
        out: torch.Tensor = backend.forward(
            inputs.query[..., :rank].contiguous().flatten(1),
            inputs.latent[..., :rank],
            inputs.latent[..., :rank],
            self._server.layer,
            batch,
            save_kv_cache=True,
            q_rope=inputs.query[..., rank:].contiguous(),
            k_rope=inputs.latent[..., rank:],
            topk_indices=lists,
        )
        return out.view(-1, geometry.query_heads, rank)

    def _correct(self, lists: torch.Tensor) -> None:
        """Keep the lists of the real rows, and put right ones in the place of wrong ones."""
        count = self._now.step.tokens
        self._made = lists[:count].clone()
        selection = self._selection
        right = self._made.clone()
        for row in range(len(self._made)):
            if selection.mistake(row, self._made[row]):
                right[row] = selection.right[row]
        self._right = right
        lists[:count] = right

    @property
    def _selection(self) -> Selection:
        """The scores of the step's keys within an error, in rows, with the names of the keys in lists."""
        inputs = self._now
        assert self._names is not None
        rows = inputs.rows[: inputs.step.tokens]
        lengths = tuple(row.length for row in rows)
        starts = (0,) * len(rows)
        keys, scales = held_keys(inputs, self._pool.index_keys[1:])
        scoring = Scoring(
            inputs.index_queries[: len(rows)],
            inputs.index_weights[: len(rows)],
            keys,
            scales,
            tuple(inputs.keys_from[row.request] for row in rows),
            starts,
            lengths,
            max(lengths),
        )
        low, high = scoring.bounds(NoiseModel.fp32_arithmetic(), _ALPHA)
        names = self._names.of(inputs, self._pool.page_size)
        return Selection(low, starts, lengths, self._sparse.geometry.top_k, names, highest=high)

    def _finish(self, step: Step, inputs: Any, out: torch.Tensor) -> Any:
        return SparseResult(tuple(self._parts(inputs, out)))

    def _parts(self, given: SparseInputs, out: torch.Tensor) -> Iterator[Part]:
        """Yield the results of a step."""
        inputs, pool = self._now, self._pool
        tokens = tuple((b, j) for b, request in enumerate(inputs.step.requests) for j in range(request.q_len))
        latents, keys = pool.before
        yield written_keys(inputs, keys[1:], pool.index_keys[1:], tokens, STORE.name)
        batched = inputs.step.mode.batched
        kernel = deep_gemm.PAGED_LOGITS if batched else deep_gemm.LOGITS
        yield Selected(kernel.name, "topk_indices", self._made, self._selection, tokens)
        size = pool.page_size
        yield written_latents(inputs, latents[size:], pool.latents[size:], tokens)
        yield SparselyAttended(ATTEND.name, self._attended(given, out))

    def _attended(self, given: SparseInputs, out: torch.Tensor) -> Output:
        inputs, geometry = self._now, self._sparse.geometry
        assert self._names is not None
        keys = self._keys(inputs)
        names = self._names.of(inputs, self._pool.page_size)
        attended = []
        for row, each in enumerate(inputs.rows[: inputs.step.tokens]):
            entries = self._right[row]
            entries = entries[entries >= 0].long()
            if names is not None:
                at = {int(name): position for position, name in enumerate(names[row].tolist())}
                entries = torch.tensor([at[int(entry)] for entry in entries.tolist()], dtype=torch.int64)
            own = keys[entries + inputs.keys_from[each.request]]
            attended.append(Attended(row, given.query[row : row + 1], own, own[..., : geometry.value_dim]))
        return Output(out, None, tuple(attended), self._server.layer.scaling, 1.0)

    def _keys(self, inputs: OpInputs) -> torch.Tensor:
        """Return the latents of all keys as the attention reads them [keys, 1, dim]."""
        assert self._names is not None
        if self._names.ragged and not any(request.kv_len > request.q_len for request in inputs.step.requests):
            # Without a cached prefix, it attends to the new latents themselves.
            return latents_of(inputs)
        held = self._pool.latents[inputs.all_slots + self._pool.page_size, 0]
        if self._sparse.geometry.format is KvFormat.LATENT:
            return held.view(torch.bfloat16)[:, None]
        latents = packed.unpack(held)[:, None]
        return latents.to(torch.bfloat16) if self._names.ragged else latents


def _kind_of(loaded: Loaded) -> DsaKind:
    assert isinstance(loaded.kind, DsaKind)
    return loaded.kind


class Naming:
    """The names of keys in the lists of a forward: slots, offsets among the keys of the batch, or positions."""

    def __init__(self, backend: Any, batch: Any) -> None:
        method = backend.get_topk_transform_method(batch.forward_mode)
        # Before, the environment alone decided it (0.5.14: layers/attention/dsa/dsa_topk_backend.py).
        by_default = os.environ.get("SGLANG_DSA_FUSE_TOPK") != "0"
        self._fused = bool(getattr(backend, "use_fused_topk", by_default))
        self.ragged = method.name == "RAGGED"

    def of(self, inputs: OpInputs, page_size: int) -> tuple[torch.Tensor, ...] | None:
        """Return the name of each position of each row's request, None for positions themselves."""
        if not self._fused:
            return None
        requests = inputs.step.requests
        if self.ragged:
            of_request = [torch.arange(each.kv_len) + inputs.keys_from[b] for b, each in enumerate(requests)]
        else:
            of_request = [inputs.slots_of(b, torch.arange(each.kv_len)) + page_size for b, each in enumerate(requests)]
        return tuple(of_request[row.request] for row in inputs.rows[: inputs.step.tokens])
