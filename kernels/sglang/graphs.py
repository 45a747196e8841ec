"""Graphs captured and replayed as a release's runners do: static buffers, the backend's planners, its forward pass."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from packaging.version import Version

from attnfuzz.kernels.releases.recording import Recording, record
from attnfuzz.kernels.sglang.batch import forward_batch, new_keys
from attnfuzz.kernels.sglang.graph_buffers import GraphBuffers
from attnfuzz.kernels.sglang.layer import Inputs
from attnfuzz.kernels.sglang.orders import GraphPlanner
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.reference.case import Launch, Mode, Step

Attend = Callable[[Any, Any, Any], torch.Tensor]
"""The forward pass of a backend, from a batch and the model's inputs to out [rows, q_heads, head_dim_vo]."""


_WIDE_LENGTHS = Version("0.5.14")
"""The first version whose runners keep lengths in int64 (0.5.13: model_executor/cuda_graph_runner.py:186)."""


class _ByArguments:
    """Planning of a graph's batch in releases to 0.5.12.

    0.5.9: cuda_graph_runner.py:689 and :830, eagle_draft_extend_cuda_graph_runner.py:334 and :458.
    """

    def capture(self, backend: Any, batch: Any) -> None:
        backend.init_forward_metadata_capture_cuda_graph(
            batch.batch_size,
            batch.input_ids.shape[0],
            batch.req_pool_indices,
            batch.seq_lens,
            None,
            batch.forward_mode,
            batch.spec_info,
        )

    def within(self, backend: Any, batch: Any) -> None:
        pass

    def replay(self, backend: Any, batch: Any, buffers: GraphBuffers, size: int) -> None:
        # The runner of draft extends passes its whole buffers, the other one the graph's slices.
        end = None if buffers.draft else size
        backend.init_forward_metadata_replay_cuda_graph(
            size,
            buffers.req_pool_indices[:end],
            buffers.seq_lens[:end],
            batch.seq_lens_sum + (size - batch.batch_size) * buffers.fill,
            None,
            batch.forward_mode,
            batch.spec_info,
            seq_lens_cpu=buffers.seq_lens_cpu[:end],
        )


_PASSED_ON = ("out_cache_loc_virtual", "kv_loc_plan", "kv_loc_cols", "max_seq_len_host", "out_cache_loc_dsv4")
"""Fields of a batch that later versions pass on (0.5.23: model_executor/runner/decode_cuda_graph_runner.py:219)."""


class _InAndOut:
    """Planning of a graph's batch in releases from 0.5.13 on; `within` is captured.

    0.5.14: model_executor/runner/decode_cuda_graph_runner.py:772 and :950, and for draft extends
    speculative/eagle_draft_extend_cuda_graph_runner.py:415 and :553.
    """

    def capture(self, backend: Any, batch: Any) -> None:
        backend.init_forward_metadata_out_graph(batch, in_capture=True)

    def within(self, backend: Any, batch: Any) -> None:
        backend.init_forward_metadata_in_graph(batch)

    def replay(self, backend: Any, batch: Any, buffers: GraphBuffers, size: int) -> None:
        end = None if buffers.draft else size
        tokens = None if buffers.draft else size * buffers.stride
        backend.init_forward_metadata_out_graph(
            SimpleNamespace(
                batch_size=size,
                forward_mode=batch.forward_mode,
                actual_forward_mode=batch.forward_mode,
                input_ids=batch.input_ids if buffers.draft else buffers.input_ids[:tokens],
                positions=buffers.positions[: size * buffers.stride],
                req_pool_indices=buffers.req_pool_indices[:end],
                seq_lens=buffers.seq_lens[:end],
                seq_lens_sum=batch.seq_lens_sum + (size - batch.batch_size) * buffers.fill,
                seq_lens_cpu=buffers.seq_lens_cpu[:end],
                num_padding=size - batch.batch_size,
                encoder_lens=None,
                out_cache_loc=batch.out_cache_loc,
                spec_info=batch.spec_info,
                **{name: getattr(batch, name) for name in _PASSED_ON if hasattr(batch, name)},
            )
        )


_PLANNERS: dict[GraphPlanner, _ByArguments | _InAndOut] = {
    GraphPlanner.ARGUMENTS: _ByArguments(),
    GraphPlanner.IN_AND_OUT: _InAndOut(),
}


@dataclass(frozen=True)
class _Captured:
    """A graph, its inputs in addition to its runner's buffers, and its output.

    `metadata` is MLA's plan for the graph, and `q_len` its padded query length at the capture.
    """

    graph: Recording
    inputs: Any
    out: torch.Tensor
    metadata: Any
    q_len: int | None


def planned_q_len(metadata: Any) -> int | None:
    """Return the length to which a plan pads queries, from which KV lengths follow; None if it has none."""
    q_len = getattr(metadata, "max_seq_len_q", None)
    return q_len if isinstance(q_len, int) else None


def layout_breach(frozen: int | None, planned: int | None) -> str | None:
    """Describe a replay's plan that pads queries to another length than its graph, which keeps the captured one."""
    if frozen is None or planned is None or planned == frozen:
        return None
    return (
        f"max_seq_len_q is {planned} in the plan of the replay and {frozen} in the graph, which pads queries as "
        "it was captured: KV lengths that were planned for another padding are not those of its queries"
    )


class ServedGraphs:
    """The graphs of a session, by mode and rows. Each mode has a runner of its own, with its buffers."""

    def __init__(self, server: Server, planner: GraphPlanner) -> None:
        self._server, self._planner_kind, self._case, self._bench = server, planner, server.case, server.bench
        self._planner = _PLANNERS[planner]
        self._buffers: dict[Mode, GraphBuffers] = {}
        self._captured: dict[tuple[Mode, int], _Captured] = {}

    def capture(self, backend: Any, index: int, attend: Attend) -> None:
        """Capture the graph of step `index`.

        The warm-up runs (0.5.9: model_executor/cuda_graph_runner.py:725) are omitted: their results are not used, and
        metadata that a replay fills in is not consistent yet.
        """
        step = self._case.steps[index]
        buffers = self._runner(backend, step)
        batch = forward_batch(self._server, index)
        buffers.describe(batch, step.padded_batch)
        rows = step.padded_tokens
        inputs = self._inputs(step, rows)
        with buffers.as_before_replays():
            self._planner.capture(backend, batch)
            # A backend of two parts has no plan of its own.
            select = getattr(backend, "_select_backend", None)
            planned = select(batch.forward_mode) if select else backend
            metadata = getattr(planned, "forward_decode_metadata", None)
            q_len = planned_q_len(metadata)
            with record(self._bench, host=(buffers.seq_lens_cpu,)) as graph:
                self._planner.within(backend, batch)
                out = attend(backend, batch, inputs)
        self._captured[step.mode, rows] = _Captured(graph, inputs, out, metadata, q_len)

    def _inputs(self, step: Step, rows: int) -> Any:
        """Return the inputs of a capture."""
        geometry = self._case.geometry
        query = torch.zeros((rows, geometry.q_heads, geometry.head_dim_qk), dtype=geometry.dtype.torch_dtype)
        return Inputs.place(self._case, self._bench, query, new_keys(self._server, step, rows))

    def replay(self, backend: Any, batch: Any, step: Step, inputs: Any) -> tuple[Any, torch.Tensor]:
        """Replay the graph of a step's bucket on a batch; returns the inputs that it read, and its output."""
        buffers, captured = self._buffers[step.mode], self._captured[step.mode, step.padded_tokens]
        size = step.padded_batch
        buffers.fill_from(batch, size)
        captured.inputs.fill(inputs)
        self._planner.replay(backend, batch, buffers, size)
        breach = layout_breach(captured.q_len, planned_q_len(captured.metadata))
        if breach is not None:
            self._bench.launcher.report("max_seq_len_q", breach)
        captured.graph.replay()
        return captured.inputs, captured.out

    def _runner(self, backend: Any, step: Step) -> GraphBuffers:
        """Return a mode's buffers for the largest batch of the server, and allocate the backend's own."""
        if step.mode not in self._buffers:
            sizes = (
                each.padded_batch
                for each in self._case.steps
                if each.launch is Launch.CAPTURE and each.mode is step.mode
            )
            most, stride = max(sizes) + self._server.further_requests, step.tokens_per_request
            backend.init_cuda_graph_state(most, most * stride)
            fill = backend.get_cuda_graph_seq_len_fill_value()
            self._buffers[step.mode] = GraphBuffers.allocate(
                self._bench,
                self._planner_kind,
                step.mode,
                batch=most,
                stride=stride,
                fill=fill,
                lengths=torch.int64 if self._server.loaded.release.version >= _WIDE_LENGTHS else torch.int32,
            )
        return self._buffers[step.mode]
