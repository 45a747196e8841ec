"""FlashInfer's wrapper whose kernels have attention sinks: BatchAttentionWithAttentionSinkWrapper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.wrappers.backends import (
    EIGHT_BITS,
    NO_POSITIONS,
    PLAIN,
    WIDE,
    WINDOWED,
    capability_of,
    each_variant,
    fa2_noise,
    fa3_noise,
    wrapper_backend,
)
from attnfuzz.kernels.gpu.wrappers.paged import FA2_PAGED, FA3_PAGED, PagedForm
from attnfuzz.kernels.gpu.wrappers.paged_session import PagedWrapperSession
from attnfuzz.kernels.interface.backend import Bench, Fill
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import SPECULATIVE, Case, Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

_MODULE = "flashinfer.attention"
_NAME = "BatchAttentionWithAttentionSinkWrapper"


@dataclass(frozen=True, kw_only=True)
class SinkForm(PagedForm):
    """The wrapper is compiled for the geometry that its constructor is given.

    Its kernel takes the sinks after the cache, by position. Its other argument, sm_scale, is then that of the plan
    (BatchPrefillWithPagedKVCacheWrapper.run, jit_scalar_values).
    """

    def constructed(self, geometry: Geometry, common: Mapping[str, Any], *, in_graph: bool) -> dict[str, Any]:
        """See `WrapperKind`."""
        layer = {
            "q_data_type": geometry.dtype.torch_dtype,
            "kv_data_type": geometry.kv_dtype.torch_dtype,
            "head_dim_qk": geometry.head_dim_qk,
            "head_dim_vo": geometry.head_dim_vo,
            "window_left": geometry.window_left,
        }
        return {**super().constructed(geometry, common, in_graph=in_graph), **layer}


def _form(paged: PagedForm) -> SinkForm:
    positional = ("q", "paged_kv_cache", "sinks")
    return SinkForm(**{**vars(paged), "module": _MODULE, "name": _NAME, "positional": positional})


FA2_SINKS: Final = _form(FA2_PAGED)
FA3_SINKS: Final = _form(FA3_PAGED)


def sink_modules(bucket: Bucket, backend: str) -> tuple[Module, ...]:
    """List the modules of the wrapper. It has no soft cap."""
    return each_variant(bucket, f"{backend.upper()} prefill with sinks", partial(_spec, backend))


def _spec(backend: str, dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool) -> Any:
    """Make the module as the wrapper's constructor does. Its name says neither head dims nor the cache's dtype.

    FlashInfer's own `gen_batch_prefill_attention_sink_module` compiles the same under another name.
    """
    from flashinfer.jit.attention import modules, variants  # noqa: PLC0415 - makes a CUDA context
    from flashinfer.jit.utils import filename_safe_dtype_map  # noqa: PLC0415

    assert not cap
    query, kv = dtypes
    return modules.gen_customize_batch_prefill_module(
        backend,
        f"batch_prefill_attention_sink_{filename_safe_dtype_map[query]}_swa_{window}_{backend}",
        query,
        kv,
        query,
        torch.int32,
        *dims,
        ["sink"],
        ["float"],
        ["sm_scale"],
        ["double"],
        "AttentionSink",
        variants.attention_sink_decl[backend],
        pos_encoding_mode=NO_POSITIONS,
        use_sliding_window=window,
        use_fp16_qk_reduction=False,
        paged_kv_stride_mode="independent" if backend == "fa2" else "runtime",
        module_surface="full",
    )


def _with_sinks(bucket: Bucket) -> Bucket:
    return msgspec.structs.replace(bucket, sinks=(True,))


# One bucket for each name of a module: two geometries with one name would overwrite each other's sources.
_FA2_BUCKETS: Final = tuple(map(_with_sinks, (PLAIN, EIGHT_BITS)))
_FA3_BUCKETS: Final = tuple(map(_with_sinks, (PLAIN, WINDOWED)))


def _backend(backend: str, form: SinkForm, buckets: tuple[Bucket, ...]) -> GpuBackend:
    return wrapper_backend(
        f"{backend}_sinks",
        PagedWrapperSession,
        form,
        capability_of(Mode.of_kernels(), SPECULATIVE, *buckets),
        fa3_noise if backend == "fa3" else fa2_noise,
        rules.FA3_SINKS if backend == "fa3" else rules.FA2_SINKS,
        lives.of_sinks,
        partial(sink_modules, backend=backend),
    )


SINK_BACKENDS: Final = (_backend("fa2", FA2_SINKS, _FA2_BUCKETS), _backend("fa3", FA3_SINKS, _FA3_BUCKETS))


class SecondSession(PagedWrapperSession):
    """A session in a process that has made a wrapper for another geometry, whose module has the same name.

    The library of that name, which is loaded by then, is that of the `first` bucket: FlashInfer would compile the
    second module over it, and the loader returns the library that it has loaded from the same path.
    """

    def __init__(
        self, form: SinkForm, first: Bucket, case: Case, bench: Bench, *, buckets: Sequence[Bucket] = ()
    ) -> None:
        super().__init__(form, case, bench, buckets=buckets)
        floats = bench.memory.tensor("float_workspace_buffer", (16,), torch.uint8, fill=Fill.ZEROS)
        arguments = {"float_workspace_buffer": floats, "kv_layout": case.geometry.kv_layout.value}
        self._made_before = form.launched(bench, first.simplest, arguments)


def _second(backend: str, form: SinkForm, *buckets: Bucket) -> GpuBackend:
    """Make a backend apart, as most of its cases fail, for geometries whose modules have the name of PLAIN's."""
    first = _with_sinks(PLAIN)
    alone = _backend(backend, form, tuple(map(_with_sinks, buckets)))
    return replace(
        alone,
        name=f"{alone.name}_second",
        session=partial(SecondSession, form, first, buckets=alone.capability.buckets),
        modules_of=lambda _: sink_modules(first, backend),
    )


SECOND_SINK_BACKENDS: Final = (
    _second("fa2", FA2_SINKS, WIDE, msgspec.structs.replace(PLAIN, kv_dtype=DType.FLOAT8_E4M3)),
    _second("fa3", FA3_SINKS, WIDE),
)
