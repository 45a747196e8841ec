"""Backends whose kernels work on attention states, (out, LSE): FlashInfer's merges, and this project's fixup.

The states are computed on the host in fp64: jobs that share a GPU would wait for a dozen small launches per request.

The mode determines the merge of the parts of the KV. A chunked prefill and a verify merge in place, one part after
another, as servers merge prefixes; a verify does so under a mask of the rows with keys in the part. An extend merges
into new tensors. All others merge all parts at once, like split KV.

Before a fixup, requests without keys are skipped, as ragged kernels do (SGLang PR #22688). The final contents of their
rows come from the fixup alone, and so do any writes elsewhere.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch

from attnfuzz.kernels.backend import Attended, Bench, Fill, Op, Output
from attnfuzz.kernels.gpu import function_argument_rules as rules
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.library_ops import library_op
from attnfuzz.kernels.gpu.states import FIXUP, FIXUP_SOURCE, MERGE_MODULE, MERGE_STATE_IN_PLACE
from attnfuzz.kernels.gpu.visible import Arch
from attnfuzz.kernels.lengths import longest, place_int32, running_sum
from attnfuzz.kernels.library_call import Action, LibraryCall
from attnfuzz.kernels.queries import draw_queries, packed_rows, query_strides, softmax_scale
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.slot_tokens import SlotTokens
from attnfuzz.kernels.torch_sdpa import visible
from attnfuzz.reference.attention import attend
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.problem import Problem

EVERY_KEY = slice(None)


def answers(
    attended: Sequence[Attended], scale: float, keys: slice = EVERY_KEY
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """fp64 causal attention to some keys of each request, and its LSE in base 2; 0 and -inf without visible keys.

    Yields the rows of adjacent requests that have such keys, with [rows, q_heads, ...] and [rows, q_heads]. All lie on
    the host, and all requests are answered at once. The last query is aligned to the last of all keys.
    """
    entries = [entry for entry in attended if len(entry.key[keys])]
    if not entries:
        return
    q_lens, kv_lens = zip(*((len(entry.query), len(entry.key)) for entry in entries), strict=True)
    causal = keys == EVERY_KEY
    problem = Problem(
        torch.cat([entry.query for entry in entries]),
        torch.cat([entry.key[keys] for entry in entries]),
        torch.cat([entry.value[keys] for entry in entries]),
        q_lens,
        tuple(len(entry.key[keys]) for entry in entries),
        scale,
        causal=causal,
        masks=None if causal else tuple(map(partial(_seen, keys), q_lens, kv_lens)),
    )
    found = attend(problem)
    rows: list[slice] = []
    for entry in entries:
        first = entry.first_row
        if rows and rows[-1].stop == first:
            first = rows.pop().start
        rows.append(slice(first, entry.first_row + len(entry.query)))
    lengths = [own.stop - own.start for own in rows]
    yield from zip(rows, found.out.split(lengths), (found.lse / math.log(2)).split(lengths), strict=True)


def _seen(keys: slice, q_len: int, kv_len: int) -> torch.Tensor:
    """The causal mask of some keys."""
    return visible(q_len, kv_len, -1)[:, keys]


_CASCADE: Final = "flashinfer.cascade"
_MOST_PARTS: Final = 6


def _merge(name: str) -> Op:
    """One of FlashInfer's merges, whose own allocations are copied to `out` and `lse`."""
    return library_op(LibraryCall(action=Action.FUNCTION, module=_CASCADE, name=name, results=("out", "lse")))


MERGE_STATE: Final = _merge("merge_state")
"""Of v_a, s_a, v_b and s_b."""
MERGE_STATES: Final = _merge("merge_states")
"""Of v [tokens, parts, heads, dim] and s [tokens, parts, heads]."""


class CascadeSession:
    """Merges parts of `chunk_capacity` keys; the last parts are empty for requests shorter than others."""

    merge_state: Op = MERGE_STATE
    merge_states: Op = MERGE_STATES
    merge_in_place: Op = MERGE_STATE_IN_PLACE

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        self._tokens = SlotTokens.cached(case)
        self._scale = softmax_scale(case)

    def forward(self, index: int) -> Output:
        """Run one step."""
        case, step = self._case, self._case.steps[index]
        query = draw_queries(case, index, step.padded_tokens, case.geometry.head_dim_qk)
        attended = self._tokens.attended(step, query, packed_rows(step))
        parts = self._parts(step)
        states = [self._attend(step, attended, begin, end) for begin, end in parts]
        results = self._merged(step, states)
        return Output(
            out=results.out,
            lse=self._in_fp32(results.lse),
            attended=attended,
            bmm1_scale=self._scale,
            bmm2_scale=1.0,
            roundings=len(parts),
        )

    def _parts(self, step: Step) -> list[tuple[int, int]]:
        """Ranges of keys, at least two: the second may be empty for all requests."""
        longest = max((request.kv_len for request in step.requests), default=0)
        size = max(self._case.chunk_capacity, -(-longest // _MOST_PARTS), 1)
        return [(begin, begin + size) for begin in range(0, max(longest, size + 1), size)]

    def _attend(self, step: Step, attended: tuple[Attended, ...], begin: int, end: int) -> tuple[Results, torch.Tensor]:
        """Attention to the keys from `begin` up to `end`, on the host, and the rows of the requests that have any."""
        geometry, rows = self._case.geometry, step.padded_tokens
        shape = (rows, geometry.q_heads, geometry.head_dim_vo)
        state = Results(torch.zeros(shape, dtype=geometry.dtype.torch_dtype), torch.zeros(shape[:2]))
        state.clear()
        present = torch.zeros(rows, dtype=torch.uint8)
        for own, out, lse in answers(attended, self._scale, slice(begin, end)):
            present[own] = 1
            state.out[own], state.lse[own] = out, lse
        return state, present

    def _merged(self, step: Step, states: list[tuple[Results, torch.Tensor]]) -> Results:
        launch, copy = self._bench.launcher.launch, self._bench.memory.copy
        if step.mode in (Mode.CHUNKED_PREFILL, Mode.TARGET_VERIFY):
            first, *parts = self._placed(states)
            for part, (_, present) in zip(parts, states[1:], strict=True):
                mask = copy("mask", present).view(torch.bool) if step.mode is Mode.TARGET_VERIFY else None
                launch(self.merge_in_place, v=first.out, s=first.lse, v_other=part.out, s_other=part.lse, mask=mask)
            return first
        if step.mode is Mode.EXTEND:
            first, *parts = self._placed(states)
            for part in parts:
                merged = self._place(step)
                sides = {"v_a": first.out, "s_a": first.lse, "v_b": part.out, "s_b": part.lse}
                launch(self.merge_state, out=merged.out, lse=merged.lse, **sides)
                first = merged
            return first
        with self._bench.memory.at_once():
            merged = self._place(step)
            v = copy("v", torch.stack([part.out for part, _ in states], dim=1))
            s = copy("s", torch.stack([part.lse for part, _ in states], dim=1))
        launch(self.merge_states, out=merged.out, lse=merged.lse, v=v, s=s)
        return merged

    def _place(self, step: Step) -> Results:
        return Results.place(self._case, self._bench, step.padded_tokens)

    def _placed(self, states: list[tuple[Results, torch.Tensor]]) -> list[Results]:
        """The states in guarded memory."""
        copy = self._bench.memory.copy
        with self._bench.memory.at_once():
            return [Results(copy("state_out", state.out), copy("state_lse", state.lse)) for state, _ in states]

    def _in_fp32(self, lse: torch.Tensor) -> torch.Tensor:
        """The LSE of a merge in place, which has the form of a state."""
        return lse if lse.dtype is torch.float32 else self._bench.memory.copy("lse", lse.float())


def _buckets() -> tuple[Bucket, ...]:
    shared: dict[str, Any] = {
        "heads": ((1, 1), (4, 2), (5, 1)),
        "page_sizes": (16,),
        "layouts": (KvLayout.HND,),
    }
    # fp16 and bf16, and these head dims (csrc/cascade.cu, DISPATCH_DLPACK_DTYPE_TO_CTYPE_FP16; DISPATCH_HEAD_DIM).
    return tuple(
        Bucket(dtype=dtype, kv_dtype=dtype, head_dim_qk=64, head_dim_vo=head_dim, **shared)
        for dtype in (DType.BFLOAT16, DType.FLOAT16)
        for head_dim in (64, 128, 256, 512)
    )


CASCADE_MERGE: Final = GpuBackend(
    name="cascade_merge",
    archs=frozenset(Arch),
    capability=Capability(
        device=Device.CUDA, buckets=_buckets(), modes=Mode.of_kernels(), padding=True, arguments=rules.MERGES
    ),
    contract=Contract(lse=LseBase.TWO),
    session=CascadeSession,
    kernels=(MERGE_STATE, MERGE_STATES, MERGE_STATE_IN_PLACE),
    modules_of=lambda _: (MERGE_MODULE,),
    # The parts are computed in fp64; the kernels scale and add them in fp32, with exp2 approximated (cascade.cuh).
    theoretical=lambda _: NoiseModel.fp32_arithmetic(),
)


class FixupSession:
    """A session with one launch per step, on out and lse with the strides of the case's queries."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        self._tokens = SlotTokens.cached(case)
        self._scale = softmax_scale(case)

    def forward(self, index: int) -> Output:
        """Run one step."""
        case, memory, step = self._case, self._bench.memory, self._case.steps[index]
        geometry, rows = case.geometry, step.padded_tokens
        query = draw_queries(case, index, rows, geometry.head_dim_qk)
        shape = (rows, geometry.q_heads, geometry.head_dim_vo)
        stride = query_strides(case, geometry.q_heads, geometry.head_dim_vo)
        attended = self._tokens.attended(step, query, packed_rows(step))
        # Padding is one more request without keys.
        q_lens = [*(request.q_len for request in step.requests), rows - step.tokens]
        with memory.at_once():
            out = memory.tensor("out", shape, geometry.dtype.torch_dtype, stride=stride, fill=Fill.OUTPUT)
            lse = memory.tensor("lse", shape[:2], torch.float32, fill=Fill.OUTPUT)
            kv_lens = place_int32(self._bench, "kv_lens", [*(request.kv_len for request in step.requests), 0])
            cum_seq_lens = place_int32(self._bench, "cum_seq_lens", running_sum(q_lens))
            for own, *values in answers(attended, self._scale):
                for results, part in zip((out, lse), values, strict=True):
                    memory.overwrite(results[own], part)
        self._bench.launcher.launch(
            FIXUP,
            out=out,
            lse=lse,
            kv_lens=kv_lens,
            cum_seq_lens=cum_seq_lens,
            max_seq_len=longest(q_lens) + case.max_len_slack,
        )
        return Output(out=out, lse=lse, attended=attended, bmm1_scale=self._scale, bmm2_scale=1.0)


CUDA_FIXUP = GpuBackend(
    name="cuda_fixup",
    archs=frozenset(Arch),
    capability=Capability(
        device=Device.CUDA,
        layouts=(KvLayout.HND, KvLayout.NHD),
        unequal_head_dims=True,
        padding=True,
        query_views=tuple(QueryView),
    ),
    contract=Contract(lse=LseBase.TWO),
    session=FixupSession,
    kernels=(FIXUP,),
    # The kernel computes nothing, and the error of fp64 attention is below fp32's.
    theoretical=lambda _: NoiseModel.fp32_arithmetic(),
    needs=(),
    own=((FIXUP_SOURCE,),),
)
