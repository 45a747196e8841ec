"""FlashInfer's functions for one request, which return their results: a call for each request of a step.

Requests without queries are called if the case asks for it: FlashInfer's examples have none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from attnfuzz.kernels.backend import Bench, Op, Output, Unsupported
from attnfuzz.kernels.gpu import flashinfer_op
from attnfuzz.kernels.gpu.wrappers.ragged import place_tokens
from attnfuzz.kernels.queries import draw_queries, packed_rows, place_queries, softmax_scale
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.slot_tokens import SlotTokens
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.case import Case, Request


def call_into(module: str, name: str, /, *, out: torch.Tensor, lse: torch.Tensor, **arguments: Any) -> None:
    """Call a function of one request, and copy its own allocations to `out` and `lse`."""
    result, logsumexp = flashinfer_op.call(module, name, return_lse=True, **arguments)
    out.copy_(result)
    lse.copy_(logsumexp)


def _op(module: str, name: str) -> Op:
    return Op(name, partial(call_into, module, name), frozenset({"out", "lse"}))


SINGLE_PREFILL = _op("flashinfer.prefill", "single_prefill_with_kv_cache")
SINGLE_DECODE = _op("flashinfer.decode", "single_decode_with_kv_cache")


@dataclass(frozen=True, kw_only=True)
class SingleKind:
    """One of the functions, with the arguments that choose its kernel.

    `splits`: whether the kernel may split the keys into parts, whose results are rounded and then merged. A `decode`
    takes a query [heads, dim] without the axis of tokens.
    """

    op: Op
    fixed: Mapping[str, Any] = field(default_factory=dict)
    splits: bool = True
    decode: bool = False


class SingleSession:
    """A session with a call for each request; K and V are dense, each request's in its own memory."""

    def __init__(self, kind: SingleKind, case: Case, bench: Bench) -> None:
        self._kind, self._case, self._bench = kind, case, bench
        self._tokens = SlotTokens.cached(case, device=bench.device)
        self._scale = softmax_scale(case, case.geometry.head_dim_qk)
        self._gives_dtype = ArgumentForm.OUT_DTYPE_GIVEN in case.arguments

    def forward(self, index: int) -> Output:
        """Run one step; no kernel sees padding."""
        case, step = self._case, self._case.steps[index]
        drawn = draw_queries(case, index, step.padded_tokens, case.geometry.head_dim_qk)
        query = place_queries(case, self._bench, drawn)
        results = Results.place(case, self._bench, step.padded_tokens, case.geometry.head_dim_vo)
        for first, request in zip(packed_rows(step), step.requests, strict=True):
            rows = slice(first, first + request.q_len)
            if request.q_len:
                self._attend(request, query[rows], results[rows])
            elif ArgumentForm.CALL_WITHOUT_QUERIES in case.arguments:
                self._call_without_queries(request, query[rows], results[rows])
        results[step.tokens :].clear()
        return Output(
            out=results.out,
            lse=results.lse,
            attended=self._tokens.attended(step, query, packed_rows(step)),
            bmm1_scale=self._scale * case.scales.k,
            bmm2_scale=case.scales.v,
            # The kernel's, that of a merge, and that of v_scale, by which the output is multiplied afterwards.
            roundings=1 + self._kind.splits + (case.scales.v != 1),
        )

    def _call_without_queries(self, request: Request, query: torch.Tensor, results: Results) -> None:
        """Make a call that writes nothing, and that the function may refuse."""
        try:
            self._attend(request, query, results)
        except Unsupported:
            raise
        except Exception:  # noqa: BLE001 - by any exception
            return

    def _attend(self, request: Request, query: torch.Tensor, results: Results) -> None:
        geometry, scales, lengths = self._case.geometry, self._case.scales, (request.slot, request.kv_len)
        key, value = place_tokens(self._case, self._bench, self._tokens.keys(*lengths), self._tokens.values(*lengths))
        one = self._kind.decode
        self._bench.launcher.launch(
            self._kind.op,
            q=query[0] if one else query,
            k=key,
            v=value,
            out=results.out[0] if one else results.out,
            lse=results.lse[0] if one else results.lse,
            kv_layout=geometry.kv_layout.value,
            sm_scale=self._scale,
            k_scale=scales.k,
            v_scale=scales.v,
            window_left=geometry.window_left,
            logits_soft_cap=geometry.soft_cap,
            **({"o_dtype": geometry.dtype.torch_dtype} if self._gives_dtype else {}),
            **self._kind.fixed,
        )
