"""Backends whose kernels work on attention states, (out, LSE): FlashInfer's merges, and this project's fixup.

The states are computed on the host in fp64: jobs that share a GPU would wait for a dozen small launches per request.

The mode determines the merge of the parts of the KV. A chunked prefill and a verify merge in place, one part after
another, as servers merge prefixes; a verify does so under a mask of the rows with keys in the part. An extend merges
into new tensors. All others merge all parts at once, like split KV. Contents that must not matter are poisoned
(`parts.py`).

Before a fixup, requests without keys are skipped, as ragged kernels do (SGLang PR #22688). The final contents of their
rows come from the fixup alone, and so do any writes elsewhere.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch

from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import function_argument_rules as rules
from attnfuzz.kernels.gpu.direct.parts import StatesPart, excluded, states_of, with_rounded_lses
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.library_ops import library_op
from attnfuzz.kernels.gpu.states import FIXUP, FIXUP_SOURCE, MERGE_MODULE, MERGE_STATE_IN_PLACE
from attnfuzz.kernels.interface.backend import Attended, Bench, Fill, Op, Output
from attnfuzz.kernels.interface.library_call import Action, LibraryCall
from attnfuzz.kernels.libraries.torch_sdpa import visible
from attnfuzz.kernels.planning.lengths import longest, place_int32, running_sum
from attnfuzz.kernels.planning.queries import draw_queries, packed_rows, query_strides, softmax_scale
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.arguments import ArgumentForm
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
    """Yield fp64 causal attention to some keys of each request, and its LSE in base 2; 0 and -inf without visible keys.

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
    """Return the causal mask of some keys."""
    return visible(q_len, kv_len, -1)[:, keys]


_CASCADE: Final = "flashinfer.cascade"
_MOST_PARTS: Final = 6


def _merge(name: str) -> Op:
    """Make the op of one of FlashInfer's merges, whose own allocations are copied to `out` and `lse`."""
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
        ranges = self._ranges(step)
        # Later keys come first in every other step, so that a state without keys may be either side of a merge.
        parts = [self._attend(step, attended, *keys) for keys in (ranges[::-1] if index % 2 else ranges)]
        lacking = None
        if ArgumentForm.STATE_LSES_16_BITS in case.arguments:
            parts, lacking = with_rounded_lses(parts, case.geometry.dtype.torch_dtype)
        results = self._merged(step, states_of(parts, case.geometry.dtype.torch_dtype), parts)
        return Output(
            out=results.out,
            lse=self._comparable(results.lse, lacking),
            attended=attended,
            bmm1_scale=self._scale,
            bmm2_scale=1.0,
            roundings=len(parts),
        )

    def _ranges(self, step: Step) -> list[tuple[int, int]]:
        """Divide the keys into ranges, at least two: the second may be empty for all requests."""
        longest = max((request.kv_len for request in step.requests), default=0)
        size = max(self._case.chunk_capacity, -(-longest // _MOST_PARTS), 1)
        return [(begin, begin + size) for begin in range(0, max(longest, size + 1), size)]

    def _attend(self, step: Step, attended: tuple[Attended, ...], begin: int, end: int) -> StatesPart:
        """Attend to the keys from `begin` up to `end`."""
        geometry = self._case.geometry
        part = StatesPart.empty(step.padded_tokens, geometry.q_heads, geometry.head_dim_vo)
        for own, out, lse in answers(attended, self._scale, slice(begin, end)):
            part.present[own] = True
            part.out[own], part.lse[own] = out, lse
        return part

    def _merged(self, step: Step, states: list[Results], parts: list[StatesPart]) -> Results:
        launch, copy = self._bench.launcher.launch, self._bench.memory.copy
        if step.mode is Mode.CHUNKED_PREFILL:
            first, *others = self._placed(states, in_place=True)
            for other in others:
                launch(self.merge_in_place, v=first.out, s=first.lse, v_other=other.out, s_other=other.lse, mask=None)
            return first
        if step.mode is Mode.TARGET_VERIFY:
            merged = [excluded(state, part.present) for state, part in zip(states[1:], parts[1:], strict=True)]
            first, *others = self._placed([states[0], *merged], in_place=True)
            for other, part in zip(others, parts[1:], strict=True):
                mask = copy("mask", part.present.to(torch.uint8)).view(torch.bool)
                launch(self.merge_in_place, v=first.out, s=first.lse, v_other=other.out, s_other=other.lse, mask=mask)
            return first
        if step.mode is Mode.EXTEND:
            first, *others = self._placed(states)
            for other in others:
                whole = self._place(step)
                sides = {"v_a": first.out, "s_a": first.lse, "v_b": other.out, "s_b": other.lse}
                launch(self.merge_state, out=whole.out, lse=whole.lse, **sides)
                first = whole
            return first
        with self._bench.memory.at_once():
            whole = self._place(step)
            v = copy("v", torch.stack([state.out for state in states], dim=1))
            s = copy("s", torch.stack([state.lse for state in states], dim=1))
        launch(self.merge_states, out=whole.out, lse=whole.lse, v=v, s=s)
        return whole

    def _place(self, step: Step) -> Results:
        return Results.place(self._case, self._bench, step.padded_tokens)

    def _placed(self, states: Sequence[Results], *, in_place: bool = False) -> list[Results]:
        """Place the states in guarded memory. With `in_place`, the first one will hold the merge."""
        copy = self._bench.memory.copy
        names = ["merged_lse" if in_place else "state_lse", *("state_lse" for _ in states[1:])]
        with self._bench.memory.at_once():
            return [
                Results(copy("state_out", state.out), copy(name, state.lse))
                for name, state in zip(names, states, strict=True)
            ]

    def _comparable(self, lse: torch.Tensor, lacking: torch.Tensor | None) -> torch.Tensor:
        """Return the merged LSE in float32, plus the rounding of states' LSEs. A merge in place has a state's dtype."""
        if lacking is not None:
            return self._bench.memory.copy("lse", (lse.cpu().double() + lacking).float())
        return lse if lse.dtype is torch.float32 else self._bench.memory.copy("lse", lse.float())


def _buckets() -> tuple[Bucket, ...]:
    shared: dict[str, Any] = {
        # Of any number: the kernels only get it as an argument.
        "heads": ((1, 1), (4, 2), (5, 1), (8, 1), (16, 2), (24, 1), (71, 1)),
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
