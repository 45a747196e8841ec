"""FlashInfer's functions for one request, `single_prefill_with_kv_cache` and `single_decode_with_kv_cache`.

They return their results, and a step is a call for each of its requests.

Requests without queries are called if the case asks for it: FlashInfer's examples have none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import function_argument_rules as rules
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.library_ops import library_op
from attnfuzz.kernels.gpu.wrappers.backends import (
    CAPPED,
    CONTRACT,
    DECODE_BUCKETS,
    EIGHT_BITS,
    HALF,
    NO_POSITIONS,
    PLAIN,
    SMALL_WINDOWED,
    WINDOWED,
    decode_noise,
    each_variant,
    fa2_noise,
    fa3_noise,
)
from attnfuzz.kernels.gpu.wrappers.ragged import place_tokens
from attnfuzz.kernels.interface.backend import Bench, Op, Output, Unsupported
from attnfuzz.kernels.interface.library_call import Action, LibraryCall
from attnfuzz.kernels.planning.queries import draw_queries, packed_rows, place_queries, softmax_scale
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mode, QueryView, Request
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel


def _op(module: str, name: str) -> Op:
    """Make the op of a function of one request, whose own allocations are copied to `out` and `lse`."""
    constant = (("return_lse", True),)
    return library_op(
        LibraryCall(action=Action.FUNCTION, module=module, name=name, constant=constant, results=("out", "lse"))
    )


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
        self._scale = softmax_scale(case)
        self._gives_dtype = ArgumentForm.OUT_DTYPE_GIVEN in case.arguments

    def forward(self, index: int) -> Output:
        """Run one step; no kernel sees padding."""
        case, step = self._case, self._case.steps[index]
        drawn = draw_queries(case, index, step.padded_tokens, case.geometry.head_dim_qk)
        query = place_queries(case, self._bench, drawn)
        results = Results.place(case, self._bench, step.padded_tokens)
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


def single_prefill_modules(bucket: Bucket, backend: str) -> tuple[Module, ...]:
    """List the modules of single_prefill_with_kv_cache with fa2 or fa3."""
    return each_variant(bucket, f"{backend.upper()} single prefill", partial(_prefill_spec, backend))


def single_decode_modules(bucket: Bucket) -> tuple[Module, ...]:
    """List the modules of single_decode_with_kv_cache on CUDA cores."""
    return each_variant(bucket, "single decode", _decode_spec)


def _prefill_spec(
    backend: str, dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool
) -> Any:
    from flashinfer.jit.attention.modules import gen_single_prefill_module  # noqa: PLC0415 - makes a CUDA context

    query, kv = dtypes
    return gen_single_prefill_module(backend, query, kv, query, *dims, NO_POSITIONS, window, cap, False)


def _decode_spec(dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool) -> Any:
    from flashinfer.jit.attention.modules import gen_single_decode_module  # noqa: PLC0415 - makes a CUDA context

    query, kv = dtypes
    return gen_single_decode_module(query, kv, query, *dims, NO_POSITIONS, window, cap)


_PATIENCE: Final = 4.0
"""A step of 600 requests is as many launches: judged twice, 1.8 s on an H200, and 36 to 46 s beside 13 jobs."""


def _unpaged(*buckets: Bucket) -> tuple[Bucket, ...]:
    """Restrict the buckets to one page size, as nothing has pages."""
    return tuple(msgspec.structs.replace(bucket, page_sizes=(16,)) for bucket in buckets)


def _of_layout(layout: KvLayout, *buckets: Bucket) -> tuple[Bucket, ...]:
    return tuple(msgspec.structs.replace(bucket, layouts=(layout,)) for bucket in buckets)


def _prefill(name: str, backend: str, buckets: tuple[Bucket, ...]) -> GpuBackend:
    fa2 = backend == "fa2"
    return GpuBackend(
        name=name,
        archs=frozenset(Arch if fa2 else {Arch.HOPPER}),
        capability=Capability(
            device=Device.CUDA,
            edges=UNSAID_EDGES,
            buckets=_unpaged(*buckets),
            modes=Mode.of_kernels(),
            kv_scales=True,
            padding=True,
            # FA2: "kv_len must be greater than or equal to qo_len" under a causal mask (attention/prefill.cuh,
            # SinglePrefillWithKVCacheDispatched).
            empty_kv=not fa2,
            kv_shorter_than_q=not fa2,
            query_views=tuple(QueryView),
            kv_views=tuple(KvView),
            arguments=rules.SINGLE_PREFILL,
            patience=_PATIENCE,
        ),
        contract=CONTRACT,
        session=partial(
            SingleSession, SingleKind(op=SINGLE_PREFILL, fixed={"causal": True, "backend": backend}, splits=fa2)
        ),
        kernels=(SINGLE_PREFILL,),
        modules_of=partial(single_prefill_modules, backend=backend),
        theoretical=fa2_noise if fa2 else fa3_noise,
    )


def _decode(
    name: str,
    buckets: tuple[Bucket, ...],
    theoretical: Callable[[DType], NoiseModel],
    modules_of: Callable[[Bucket], tuple[Module, ...]],
    *,
    tensor_cores: bool,
) -> GpuBackend:
    return GpuBackend(
        name=name,
        archs=frozenset(Arch),
        capability=Capability(
            device=Device.CUDA,
            edges=UNSAID_EDGES,
            buckets=_unpaged(*buckets),
            modes=(Mode.DECODE,),
            kv_scales=True,
            padding=True,
            # On CUDA cores, q [heads, dim], k and v must be contiguous (csrc/single_decode.cu, CHECK_INPUT).
            query_views=tuple(QueryView) if tensor_cores else (QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
            kv_views=tuple(KvView) if tensor_cores else (KvView.SEPARATE,),
            arguments=rules.TENSOR_CORE_DECODE if tensor_cores else rules.SINGLE_DECODE,
            patience=_PATIENCE,
        ),
        contract=CONTRACT,
        session=partial(
            SingleSession, SingleKind(op=SINGLE_DECODE, fixed={"use_tensor_cores": tensor_cores}, decode=True)
        ),
        kernels=(SINGLE_DECODE,),
        modules_of=modules_of,
        theoretical=theoretical,
    )


_FA2_BUCKETS: Final = (PLAIN, EIGHT_BITS, SMALL_WINDOWED, CAPPED)
_FA3_BUCKETS: Final = (HALF, WINDOWED)

SINGLE_BACKENDS: Final = (
    _prefill("fa2_single_prefill", "fa2", _FA2_BUCKETS),
    _prefill("fa3_single_prefill", "fa3", _of_layout(KvLayout.NHD, *_FA3_BUCKETS)),
    # The SM90 binding reads the lengths of HND tensors from the axes of NHD (csrc/single_prefill_sm90.cu: kv_len is
    # k.size(0)), and its failures would hide those of NHD.
    _prefill("fa3_single_prefill_hnd", "fa3", _of_layout(KvLayout.HND, *_FA3_BUCKETS)),
    _decode(
        "single_decode",
        (*DECODE_BUCKETS, CAPPED),
        decode_noise,
        single_decode_modules,
        tensor_cores=False,
    ),
    _decode(
        "single_decode_tensor_cores",
        _FA2_BUCKETS,
        fa2_noise,
        partial(single_prefill_modules, backend="fa2"),
        tensor_cores=True,
    ),
)
