"""TRTLLMHAAttnBackend of a release on a case."""

from typing import Any

import torch

from attnfuzz.kernels.backend import Bench, Output
from attnfuzz.kernels.queries import cached_scales, packed_rows, place_sinks
from attnfuzz.kernels.sglang.inputs import Inputs
from attnfuzz.kernels.sglang.kernels_below import KernelsBelow
from attnfuzz.kernels.sglang.loader import Loaded
from attnfuzz.kernels.sglang.session import SglangSession
from attnfuzz.reference.case import Case, Step


class SglangMhaSession(SglangSession):
    """Attention to keys and values in the cache, with sinks as a GPT-OSS layer hands them over."""

    kind = "trtllm_mha"

    def __init__(self, loaded: Loaded, kernels: KernelsBelow, case: Case, bench: Bench) -> None:
        super().__init__(loaded, kernels, case, bench)
        self._sinks = place_sinks(case, bench)

    def _build(self) -> Any:
        return self._loaded.mha.TRTLLMHAAttnBackend(self._server.model_runner)

    def _attend(self, backend: Any, batch: Any, inputs: Inputs) -> torch.Tensor:
        geometry = self._case.geometry
        sinks = {} if self._sinks is None else {"sinks": self._sinks}
        out: torch.Tensor = backend.forward(
            inputs.query.flatten(1), inputs.key, inputs.value, self._server.layer, batch, save_kv_cache=True, **sinks
        )
        return out.view(-1, geometry.q_heads, geometry.head_dim_vo)

    def _finish(self, step: Step, inputs: Inputs, out: torch.Tensor) -> Output:
        attended = self._server.pool.tokens.attended(step, inputs.query, packed_rows(step))
        return Output(
            out=out,
            lse=None,
            attended=attended,
            sinks=self._sinks,
            roundings=self._kernels.roundings,
            **cached_scales(self._case, self._case.geometry.head_dim_qk),
        )
