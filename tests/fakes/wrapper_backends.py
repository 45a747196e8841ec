"""Stands for the backends over FlashInfer's wrappers: the fake ones replace them, on the CPU."""

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from flashinfer import attention, prefill

from attnfuzz.kernels.arguments.argument_forms import opened_in_forms
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.wrappers import token_head_scales
from attnfuzz.kernels.gpu.wrappers.auto import AUTO_BACKENDS
from attnfuzz.kernels.gpu.wrappers.backends import WRAPPER_BACKENDS
from attnfuzz.kernels.gpu.wrappers.decode_variants import DECODE_VARIANTS
from attnfuzz.kernels.gpu.wrappers.sinks import SECOND_SINK_BACKENDS, SINK_BACKENDS, SINK_DECODE_BACKENDS
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.reference.device import Device


class OnCpu(GpuBackend):
    """A backend of which nothing has to be compiled, and no GPU is needed."""

    def missing(self) -> str | None:
        """None."""
        return None

    def prepare(self, progress: Any) -> None:
        """Nothing."""

    def open(self, case: Any, bench: Any) -> Any:
        """A session."""
        return opened_in_forms(self.session, case, bench, self.capability.arguments)


def on_cpu_as(
    backend: GpuBackend, session: Any, kind: type[OnCpu] = OnCpu, kernels: tuple[Op, ...] | None = None
) -> OnCpu:
    """The backend with another session, on the CPU, and other ops if its own are not those that it launches."""
    fields = {name: getattr(backend, name) for name in backend.__dataclass_fields__}
    capability = msgspec.structs.replace(backend.capability, device=Device.CPU)
    return kind(**{**fields, "session": session, "capability": capability, "kernels": kernels or backend.kernels})


def faked(backend: GpuBackend) -> OnCpu:
    """A backend of the same name with fake wrappers."""
    session = backend.session
    assert isinstance(session, partial)
    form, *others = session.args
    form = replace(form, module="fake_wrappers")
    return on_cpu_as(backend, partial(session.func, form, *others, **session.keywords), kernels=form.ops)


FAKED = {backend.name: faked(backend) for backend in WRAPPER_BACKENDS}
FA2_PAGED, FA2_RAGGED = FAKED["fa2_paged"], FAKED["fa2_ragged"]
FA2_PAGED_PACKED_MASK, FA2_RAGGED_PACKED_MASK = FAKED["fa2_paged_packed_mask"], FAKED["fa2_ragged_packed_mask"]
FA3_PAGED, FA3_RAGGED, FA3_RAGGED_HND = FAKED["fa3_paged"], FAKED["fa3_ragged"], FAKED["fa3_ragged_hnd"]
BATCH_DECODE = FAKED["batch_decode"]
BATCH_DECODE_TENSOR_CORES, FA3_BATCH_DECODE, CUDA_GRAPH_DECODE, CUDA_GRAPH_DECODE_TENSOR_CORES = map(
    faked, DECODE_VARIANTS
)
FA2_SINKS, FA3_SINKS = map(faked, SINK_BACKENDS)
FA2_SINKS_SECOND, FA3_SINKS_SECOND = map(faked, SECOND_SINK_BACKENDS)
(AUTO_PAGED,) = map(faked, AUTO_BACKENDS)
# Since 0.7.4. An older release refuses each case (flashinfer_op), and the fake ones take what it has.
if hasattr(attention, "BatchDecodeWithAttentionSinkWrapper"):
    FA2_SINKS_DECODE, FA3_SINKS_DECODE = map(faked, SINK_DECODE_BACKENDS)
if "use_token_head_sf" in inspect.signature(prefill.BatchPrefillWithPagedKVCacheWrapper.plan).parameters:
    FA2_TOKEN_HEAD_SCALES = faked(token_head_scales.TOKEN_HEAD)
