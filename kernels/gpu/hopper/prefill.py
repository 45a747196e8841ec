"""MLA prefill on Hopper: chunks on FlashInfer's ragged wrapper, planned for each."""

from typing import ClassVar

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.gpu.wrappers.ragged import FA3_RAGGED, RaggedLayer, RaggedWrapper
from attnfuzz.kernels.gpu.wrappers.wrapper import WrapperKind
from attnfuzz.kernels.lengths import place_int32
from attnfuzz.kernels.ops_table import OpsTable
from attnfuzz.kernels.trtllm.prefill import Chunk, MlaPrefill, Partial, Queries
from attnfuzz.kernels.workspace import SharedWorkspace
from attnfuzz.reference.case import Case

Keys = tuple[torch.Tensor, torch.Tensor]


class HopperMlaPrefill(MlaPrefill):
    """The same chunks, fixups and merges as everywhere. One wrapper is planned again for every launch."""

    form: ClassVar[WrapperKind] = FA3_RAGGED

    def __init__(self, ops: OpsTable, case: Case, bench: Bench, workspace: SharedWorkspace) -> None:
        super().__init__(ops, case, bench, workspace)
        self._wrapper: RaggedWrapper | None = None

    def _launch(self, queries: Queries, chunk: Chunk, keys: Keys, part: Partial, *, causal: bool) -> None:
        if not chunk.lengths:
            return
        if self._wrapper is None:
            self._wrapper = RaggedWrapper(self.form, self._case, self._bench)
        geometry = self._case.geometry
        layer = RaggedLayer(
            q_heads=geometry.q_heads,
            kv_heads=geometry.q_heads,
            head_dim_qk=self._latent.nope + self._latent.rope,
            head_dim_vo=self._latent.vo,
            dtype=geometry.dtype.torch_dtype,
            kv_dtype=geometry.dtype.torch_dtype,
            sm_scale=self._launched_scales()["bmm1_scale"],
            causal=causal,
        )
        key_offsets = place_int32(self._bench, "cum_seq_lens_kv", self._key_offsets(chunk))
        self._wrapper.plan(queries.cum_seq_lens, key_offsets, layer)
        (key, value), tokens = keys, queries.step.tokens
        # It takes no more query rows than it was planned for.
        written = part.results[:tokens]
        self._wrapper.run(q=queries.tensor[:tokens], k=key, v=value, out=written.out, lse=written.lse)
