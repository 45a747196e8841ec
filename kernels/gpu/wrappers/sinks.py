"""FlashInfer's wrappers whose kernels have attention sinks: BatchAttentionWithAttentionSinkWrapper, and for decode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
import torch
from packaging.version import Version

from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import build_record, lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.wrappers.backends import (
    EIGHT_BITS,
    PLAIN,
    WIDE,
    WINDOWED,
    capability_of,
    each_variant,
    fa2_noise,
    fa3_noise,
    wrapper_backend,
)
from attnfuzz.kernels.gpu.wrappers.decode_variants import TensorCoreDecode, without_short_requests
from attnfuzz.kernels.gpu.wrappers.paged import DECODE, FA2_PAGED, FA3_PAGED, PagedForm
from attnfuzz.kernels.gpu.wrappers.paged_session import PagedWrapperSession
from attnfuzz.kernels.interface.backend import Bench, Fill
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, Case, Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

_DISTINCT_NAMES: Final = Version("0.7.4")
"""The first release in which the name of a module says all that is compiled."""

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


def _form(paged: PagedForm, name: str = _NAME, *more: str) -> SinkForm:
    positional = ("q", "paged_kv_cache", "sinks", *more)
    return SinkForm(**{**vars(paged), "module": _MODULE, "name": name, "positional": positional})


FA2_SINKS: Final = _form(FA2_PAGED)
FA3_SINKS: Final = _form(FA3_PAGED)
# Unlike that for prefill, its run does not add the plan's sm_scale to the arguments of the kernel (0.7.4: decode.py).
# This launch's name for it is another, because forms of the plan's do not concern it.
_FOR_DECODE: Final = ("BatchDecodeWithAttentionSinkWrapper", "sinks_sm_scale")
FA2_SINKS_DECODE: Final = _form(DECODE, *_FOR_DECODE)
FA3_SINKS_DECODE: Final = _form(replace(DECODE, backend="fa3", splits=False), *_FOR_DECODE)


class SinkDecode(TensorCoreDecode):
    """A wrapper whose run is given the factor of the logits, by position after the sinks."""

    def run(self, **arguments: Any) -> None:
        """See `Wrapper`."""
        super().run(sinks_sm_scale=self.layer["sm_scale"], **arguments)


class SinkDecodeSession(PagedWrapperSession):
    """A session on it."""

    wrapper_type = SinkDecode


def sink_modules(bucket: Bucket, backend: str) -> tuple[Module, ...]:
    """List the modules of the wrapper. It has no soft cap."""
    return each_variant(bucket, f"{backend.upper()} prefill with sinks", partial(_spec, backend))


def _spec(backend: str, dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool) -> Any:
    assert not cap
    geometry = dict(zip(("q_data_type", "kv_data_type", "head_dim_qk", "head_dim_vo"), (*dtypes, *dims), strict=True))
    return module_of_sinks(backend=backend, **geometry, window_left=0 if window else -1)


def module_of_sinks(**arguments: Any) -> Any:
    """Make the module that the wrapper's constructor has compiled for these `arguments`, by the name that it has there.

    FlashInfer's own `gen_batch_prefill_attention_sink_module` compiles the same under another name.
    """
    from flashinfer import attention, prefill  # noqa: PLC0415 - makes a CUDA context
    from flashinfer.jit.attention import modules  # noqa: PLC0415

    # The constructor passes the name and the rest to its base class, whose place this one takes.
    asked = type("Asked", (prefill.BatchPrefillWithPagedKVCacheWrapper,), {"__init__": _keep})
    wrapper = type(_NAME, (getattr(attention, _NAME), asked), {})(torch.empty(0), **arguments)
    given = wrapper.given
    return modules.gen_customize_batch_prefill_module(given["backend"], *given["jit_args"], **given["jit_kwargs"])


def _keep(self: Any, **given: Any) -> None:
    self.given = given


def _with_sinks(bucket: Bucket) -> Bucket:
    return msgspec.structs.replace(bucket, sinks=(True,))


# One bucket for each name of a module before 0.7.4, which said neither head dims nor the cache's dtype: two geometries
# with one name would overwrite each other's sources.
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

_DECODES: Final = (Mode.DECODE,)
_VERIFIES: Final = (Mode.DECODE, Mode.TARGET_VERIFY)


def _decode_backend(backend: str, form: SinkForm, capability: Capability) -> GpuBackend:
    return wrapper_backend(
        f"{backend}_sinks_decode",
        SinkDecodeSession,
        form,
        capability,
        fa3_noise if backend == "fa3" else fa2_noise,
        rules.FA3_SINKS_DECODE if backend == "fa3" else rules.FA2_SINKS_DECODE,
        lives.of_sinks_decode,
        partial(sink_modules, backend=backend),
    )


# Its constructor compiles the modules of the wrapper for prefill, of the same names.
SINK_DECODE_BACKENDS: Final = (
    _decode_backend(
        "fa2", FA2_SINKS_DECODE, without_short_requests(capability_of(_VERIFIES, _VERIFIES, *_FA2_BUCKETS))
    ),
    # "q_len_per_req > 1 is currently only supported on the fa2 tensor-core backend" (_plan_impl).
    _decode_backend("fa3", FA3_SINKS_DECODE, capability_of(_DECODES, _DECODES, *_FA3_BUCKETS)),
)


class SecondSession(PagedWrapperSession):
    """A session in a process that has made a wrapper for another geometry, whose module had the same name before 0.7.4.

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
    """Make a backend apart, as most of its cases fail, for geometries whose modules had the name of PLAIN's."""
    first = _with_sinks(PLAIN)

    def modules_of(bucket: Bucket) -> tuple[Module, ...]:
        # Modules of one name would be compiled over each other.
        own = sink_modules(bucket, backend) if build_record.installed() >= _DISTINCT_NAMES else ()
        return (*sink_modules(first, backend), *own)

    alone = _backend(backend, form, tuple(map(_with_sinks, buckets)))
    return replace(
        alone,
        name=f"{alone.name}_second",
        session=partial(SecondSession, form, first, buckets=alone.capability.buckets),
        modules_of=modules_of,
    )


SECOND_SINK_BACKENDS: Final = (
    _second("fa2", FA2_SINKS, WIDE, msgspec.structs.replace(PLAIN, kv_dtype=DType.FLOAT8_E4M3)),
    _second("fa3", FA3_SINKS, WIDE),
)
