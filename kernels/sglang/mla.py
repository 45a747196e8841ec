"""TRTLLMMLABackend of a release on a case: over the latents, and in a prefill over keys projected from them."""

from typing import Any

import torch

from attnfuzz.kernels.backend import Bench, Output
from attnfuzz.kernels.queries import cached_scales, packed_rows
from attnfuzz.kernels.sglang.inputs import Inputs
from attnfuzz.kernels.sglang.kernels_below import KernelsBelow
from attnfuzz.kernels.sglang.loader import Loaded
from attnfuzz.kernels.sglang.projected import ProjectedAttention
from attnfuzz.kernels.sglang.session import SglangSession
from attnfuzz.reference.case import Case, Step


class SglangMlaSession(SglangSession):
    """Latent attention as DeepSeek's layers call it (0.5.9: models/deepseek_v2.py, forward_absorb_core)."""

    kind = "trtllm_mla"

    def __init__(self, loaded: Loaded, kernels: KernelsBelow, case: Case, bench: Bench) -> None:
        super().__init__(loaded, kernels, case, bench)
        latent = case.geometry.latent
        assert latent is not None
        self._latent = latent
        self._projected = ProjectedAttention(loaded, self._server, case, bench)

    def _build(self) -> Any:
        return self._loaded.mla.TRTLLMMLABackend(self._server.model_runner)

    def _inputs(self, index: int, rows: int) -> Inputs:
        prefill = not self._case.steps[index].mode.speculative
        return self._projected.inputs(index, rows) if prefill else super()._inputs(index, rows)

    def _attend(self, backend: Any, batch: Any, inputs: Inputs) -> torch.Tensor:
        geometry, latent = self._case.geometry, self._latent
        if inputs.value is not None:
            return self._projected.attend(backend, batch, inputs)
        q_nope, q_rope = inputs.query.split([latent.rank, latent.rope], dim=-1)
        k_nope, k_rope = inputs.key.split([latent.rank, latent.rope], dim=-1)
        out: torch.Tensor = backend.forward(
            q_nope,
            k_nope,
            k_nope,
            self._server.layer,
            batch,
            save_kv_cache=True,
            q_rope=q_rope,
            k_rope=k_rope,
        )
        return out.view(-1, geometry.q_heads, latent.rank)

    def _finish(self, step: Step, inputs: Inputs, out: torch.Tensor) -> Output:
        if inputs.value is not None:
            return self._projected.output(step, inputs, out)
        latent = self._latent
        attended = self._server.pool.tokens.attended(step, inputs.query, packed_rows(step))
        return Output(
            out=out,
            lse=None,
            attended=attended,
            # The softmax scale is that of the per-head keys, which the latents stand for.
            **cached_scales(self._case, latent.nope + latent.rope),
        )
