"""OpenVINO's PagedAttentionExtension on the CPU, with a cache in f32, bf16 and u8.

The operator has blocks of 32 tokens, appends the new tokens to them, and attends to the blocks. Its tensors lie in
guarded memory, the blocks included; slots without a token are NaN. Inputs for the rotation, eviction and sparsity
of caches are empty.

A u8 cache holds other numbers than the request's. Attention is judged against those that the blocks hold after the
launch, as long as each is as near to the request's as its code can be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_BUT_ZERO, UNSAID_FACTORS
from attnfuzz.kernels.functions.function_backend import FunctionSession
from attnfuzz.kernels.interface.backend import Bench, Output
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.kernels.libraries.openvino_blocks import BLOCK, BY_CHANNEL, BY_TOKEN, Blocks, Codec, plain
from attnfuzz.kernels.libraries.requests import DenseRequest, dense_requests
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Magnitude, Mode, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

_MODELS = 64
"""Compiled models that a worker keeps. Another one takes 30 ms."""


@dataclass(frozen=True)
class Precision:
    """The precision of the arithmetic, of the cache, and the layout of keys in a u8 cache."""

    arithmetic: str
    cache: str
    keys: Codec
    values: Codec
    key_mode: str = "AUTO"

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of a compiled model. One thread: workers run side by side."""
        return {
            "INFERENCE_PRECISION_HINT": self.arithmetic,
            "KV_CACHE_PRECISION": self.cache,
            "KEY_CACHE_QUANT_MODE": self.key_mode,
            "INFERENCE_NUM_THREADS": 1,
            "NUM_STREAMS": 1,
            "ENABLE_HYPER_THREADING": False,
        }


F32 = Precision("f32", "f32", plain(torch.float32), plain(torch.float32))
BF16 = Precision("bf16", "bf16", plain(torch.bfloat16), plain(torch.bfloat16))
U8 = Precision("f32", "u8", BY_CHANNEL, BY_TOKEN, "BY_CHANNEL")
U8_BY_TOKEN = Precision("f32", "u8", BY_TOKEN, BY_TOKEN, "BY_TOKEN")


@dataclass(frozen=True)
class PagedLayer:
    """The arguments of a compiled model."""

    q_heads: int
    kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    sinks: bool
    precision: Precision


@dataclass(frozen=True)
class PagedLaunch:
    """The arguments of the operator that are no tensors, and where the rows of its result go."""

    layer: PagedLayer
    scalars: Mapping[str, float]
    requests: tuple[DenseRequest, ...]
    blocks: Blocks


def arrange(
    *,
    query: torch.Tensor,
    v_cache: torch.Tensor,
    scale: float,
    window_left: int,
    sinks: torch.Tensor | None,
    precision: Precision,
    **paged: Any,
) -> dict[str, Any]:
    """Arrange the operator's inputs, with the past of each request in blocks."""
    requests = tuple(request for request in dense_requests(v_cache=v_cache, **paged) if request.q_len)
    if not requests:
        return {"launch": None}
    blocks = Blocks.of(requests)
    layer = PagedLayer(query.shape[1], v_cache.shape[2], query.shape[2], v_cache.shape[3], sinks is not None, precision)
    scalars = {
        "scale": scale,
        # The operator counts a query's own key; 0 is no window.
        "sliding_window": window_left + 1,
        "max_context_len": max(request.kv_len for request in requests),
    }
    queries = torch.cat([query[request.rows] for request in requests]).flatten(1).float()
    arranged = {
        "queries": queries,
        "keys": torch.cat([request.key[request.past :] for request in requests]).flatten(1).float(),
        "values": torch.cat([request.value[request.past :] for request in requests]).flatten(1).float(),
        "key_blocks": precision.keys.encode(blocks.filled([request.key[: request.past] for request in requests])),
        "value_blocks": precision.values.encode(blocks.filled([request.value[: request.past] for request in requests])),
        "past_lens": torch.tensor([request.past for request in requests], dtype=torch.int32),
        "subsequence_begins": _begins([request.q_len for request in requests]),
        "block_indices": torch.cat(blocks.ids).int(),
        "block_indices_begins": _begins([len(ids) for ids in blocks.ids]),
        "result": queries.new_full((len(queries), layer.q_heads * layer.head_dim_vo), float("nan")),
    }
    if sinks is not None:
        arranged["sink_logits"] = sinks.view(1, -1, 1, 1)
    return {"launch": PagedLaunch(layer, scalars, requests, blocks), **arranged}


def _begins(counts: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *counts]).cumsum(0).int()


_OUTPUT = "result"


def paged_attention(*, out: torch.Tensor, launch: PagedLaunch | None, **arranged: Any) -> None:
    """Run the operator on the arranged tensors, and copy the rows of its result to `out`."""
    if launch is None:
        return
    model, inputs = _compiled(launch.layer)
    request = model.create_infer_request()
    for name in inputs:
        given = arranged[name] if name in arranged else launch.scalars.get(name)
        request.set_tensor(name, _tensor(given, inputs[name]))
    result = arranged[_OUTPUT]
    request.set_output_tensor(0, _tensor(result, None))
    request.infer()
    first = 0
    for each in launch.requests:
        out[each.rows] = result[first : first + each.q_len].view(-1, *out.shape[1:])
        first += each.q_len


def _tensor(given: Any, element_type: Any) -> Any:
    """Wrap a tensor in the same memory; an empty one for None."""
    import openvino  # noqa: PLC0415 - an extra, for workers alone

    if given is None:
        return openvino.Tensor(element_type, openvino.Shape([0]))
    if not isinstance(given, torch.Tensor):
        return openvino.Tensor(np.array(given, element_type.to_dtype()))
    if given.dtype is torch.bfloat16:
        return openvino.Tensor(given.view(torch.uint16).numpy(), given.shape, openvino.Type.bf16)
    return openvino.Tensor(given.numpy(), shared_memory=True)


@lru_cache(_MODELS)
def _compiled(layer: PagedLayer) -> tuple[Any, dict[str, Any]]:
    """Compile a model of the operator alone. Returns it, and the types of its inputs by name."""
    import openvino  # noqa: PLC0415 - an extra, for workers alone
    from openvino import opset13  # noqa: PLC0415
    from openvino.op import _PagedAttentionExtension  # noqa: PLC0415

    parameters, arguments = [], []
    for name, (dtype, shape, given) in _inputs(layer).items():
        if given:
            parameters.append(opset13.parameter(list(shape), getattr(openvino.Type, dtype), name=name))
            parameters[-1].output(0).set_names({name})
            arguments.append(parameters[-1].output(0))
        else:
            arguments.append(opset13.constant(np.zeros(shape, _NUMPY[dtype])).output(0))
    node = _PagedAttentionExtension(arguments)
    info = node.get_rt_info()
    info["num_k_heads"] = info["num_v_heads"] = layer.kv_heads
    info["k_head_size"], info["v_head_size"] = layer.head_dim_qk, layer.head_dim_vo
    model = openvino.Model([node.output(0)], parameters, "attention")
    compiled = openvino.Core().compile_model(model, "CPU", layer.precision.properties)
    return compiled, {each.any_name: each.element_type for each in compiled.inputs}


_NUMPY = {"f32": np.float32, "i32": np.int32, "u8": np.uint8}


def _inputs(layer: PagedLayer) -> dict[str, tuple[str, tuple[int, ...], bool]]:
    """List the operator's inputs in order: element type, shape, and whether a launch gives them."""
    heads, dim_qk, dim_vo = layer.kv_heads, layer.head_dim_qk, layer.head_dim_vo
    return {
        "queries": ("f32", (-1, layer.q_heads * dim_qk), True),
        "keys": ("f32", (-1, heads * dim_qk), True),
        "values": ("f32", (-1, heads * dim_vo), True),
        # The library replaces the type and shape of these two by those of its cache.
        "key_blocks": ("f32", (-1, heads, BLOCK, dim_qk), True),
        "value_blocks": ("f32", (-1, heads, BLOCK, dim_vo), True),
        "past_lens": ("i32", (-1,), True),
        "subsequence_begins": ("i32", (-1,), True),
        "block_indices": ("i32", (-1,), True),
        "block_indices_begins": ("i32", (-1,), True),
        "scale": ("f32", (), True),
        "sliding_window": ("i32", (), True),
        "alibi_slopes": ("f32", (0,), False),
        "max_context_len": ("i32", (), True),
        "score_aggregation_window": ("i32", (-1,), True),
        "rotated_block_indices": ("i32", (0,), False),
        "rotation_deltas": ("i32", (0,), False),
        "rotation_trig_lut": ("f32", (0,), False),
        "xattention_threshold": ("f32", (0,), False),
        "xattention_block_size": ("i32", (), False),
        "xattention_stride": ("i32", (), False),
        "sink_logits": ("f32", (1, layer.q_heads, 1, 1) if layer.sinks else (0,), layer.sinks),
        "adaptive_rkv_start_size": ("i32", (), False),
        "adaptive_rkv_evictable_sizes": ("i32", (0,), False),
        "adaptive_rkv_diversity_block_set_indices": ("i32", (0,), False),
        "adaptive_rkv_diversity_block_set_indices_begins": ("i32", (0,), False),
        "token_type_ids": ("i32", (-1,), True),
        "qq_bias": ("u8", (-1,), True),
        "qq_bias_begins": ("i32", (-1,), True),
    }


class HeldTokens(FunctionSession):
    """A session that is judged by the keys and values that the blocks hold after the launch."""

    _arranged_last: Mapping[str, Any]

    def _in_memory(self, arranged: Mapping[str, Any]) -> dict[str, Any]:
        placed = super()._in_memory(arranged)
        self._arranged_last = placed
        return placed

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        output = super()._output(step, planned, query, results)
        launch: PagedLaunch | None = self._arranged_last["launch"]
        if launch is None:
            return output
        precision, attended = launch.layer.precision, list(output.attended)
        asked = [attended[each.index] for each in launch.requests]
        keys = precision.keys.held(
            self._arranged_last["key_blocks"], launch.blocks.filled([each.key for each in asked])
        )
        values = precision.values.held(
            self._arranged_last["value_blocks"], launch.blocks.filled([each.value for each in asked])
        )
        for at, each in enumerate(launch.requests):
            attended[each.index] = replace(
                attended[each.index],
                key=launch.blocks.tokens(keys, at, each.kv_len),
                value=launch.blocks.tokens(values, at, each.kv_len),
            )
        return replace(output, attended=tuple(attended))


@dataclass(frozen=True, kw_only=True)
class OpenVinoBackend(LibraryBackend):
    """The operator with a cache of one precision."""

    precision: Precision

    def open(self, case: Case, bench: Bench) -> FunctionSession:
        """Open a session on one case."""
        session = HeldTokens if self.precision.cache == "u8" else FunctionSession
        return session(self, case, bench)


_F32 = NoiseModel(
    probabilities=2.0**-24,
    logits=2.0**-20,
    accumulate=2.0**-24,
    exponential=2.0**-21,
    quotient=2.0**-126,
)
"""All in f32, with a polynomial for exp that is 0 below the logarithm of the smallest normal number.

See softmax_kernel.hpp (exp_ps_avx2) and executor_pa.cpp of the CPU plugin. The products of a logit are added up one
after another, so that 256 equal ones are off by up to 2^-17, eight times the root mean square that is stated here. With
a sink far above all logits, even the largest weight of a key may be below the smallest normal number.
"""

_BF16 = msgspec.structs.replace(_F32, probabilities=2.0**-8)
"""Products of bf16 with sums in f32; several queries at once have their weights rounded to bf16 after division."""

_PAGED = Capability(
    modes=Mode.of_kernels(),
    layouts=(KvLayout.NHD,),
    dtypes=(DType.FLOAT32,),
    unequal_head_dims=True,
    windows=True,
    sinks=True,
    empty_kv=False,
    kv_shorter_than_q=False,
    edges=UNSAID_BUT_ZERO,
)
_QUANTISED = msgspec.structs.replace(_PAGED, magnitudes=(Magnitude.PLAIN,))
_CPUINFO = Path("/proc/cpuinfo")


def no_bf16() -> str | None:
    """State why the plugin computes in f32 instead of bf16; None if it doesn't."""
    known = set(_CPUINFO.read_text().split()) if _CPUINFO.exists() else set()
    return None if known & {"avx512_bf16", "amx_bf16"} else "this CPU has no instructions for bfloat16"


def _backend(label: str, precision: Precision, can: Capability = _PAGED, **fields: Any) -> OpenVinoBackend:
    dtype = DType.BFLOAT16 if precision is BF16 else DType.FLOAT32
    return OpenVinoBackend(
        paged_attention,
        msgspec.structs.replace(can, dtypes=(dtype,)),
        label=f"openvino:{label}",
        extra="openvino",
        packages={"openvino": "2026.4"},
        arrange=partial(arrange, precision=precision),
        writes=frozenset({"key_blocks", "value_blocks", _OUTPUT}),
        precision=precision,
        **fields,
    )


OPENVINO_BACKENDS = (
    _backend("paged", F32, noise_model=_F32),
    _backend("paged_any_scale", F32, msgspec.structs.replace(_PAGED, edges=UNSAID_FACTORS), noise_model=_F32),
    _backend("paged_bf16", BF16, noise_model=_BF16, why_not=no_bf16),
    _backend("paged_u8", U8, _QUANTISED, noise_model=_F32),
    _backend("paged_u8_by_token", U8_BY_TOKEN, _QUANTISED, noise_model=_F32),
)
