"""A server with sparse attention: the mocks of `attnfuzz.kernels.sglang.runner`, with a model of DeepSeek-V3.2's kind.

A file and line below sglang/srt/ is that of SGLang 0.5.23 unless another version is named.
"""

from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.kernels.sglang.sparse.pool import SparsePool, release_sparse_pool
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.sparse.case import KvFormat, SparseCase

_PAST: Final = 2
"""Tokens that a verified request may have behind the context in that report."""


class SparseServer(Server):
    """The environment of a release's sparse backend for one case."""

    def __init__(self, loaded: Any, sparse: SparseCase, case: Case, bench: Bench) -> None:
        self.sparse = sparse
        super().__init__(loaded, case, bench)

    def _context(self) -> int:
        """Return the shortest context: that of a server whose last verification runs past its end.

        It is launched before the accepted tokens of the one before are known (SGLang issue 30570).
        """
        past = self.draft_tokens + min(self.draft_tokens - 1, _PAST) if self.draft_tokens else 0
        lengths = [
            request.kv_len - (past if step.mode is Mode.TARGET_VERIFY else 0)
            for step in self.case.steps
            for request in step.requests
        ]
        return max(1 + self.draft_tokens, *lengths)

    def _make_pool(self) -> SparsePool:
        return SparsePool(self.sparse, self.bench)

    def _release_pool(self, dtype: torch.dtype) -> Any:
        assert isinstance(self.pool, SparsePool)
        return release_sparse_pool(self.loaded, self.sparse, self.pool, dtype)

    def _arguments(self) -> dict[str, Any]:
        packed = self.sparse.geometry.format is KvFormat.PACKED
        options = self.loaded.kind.options[self.sparse.geometry.format]
        return {
            **super()._arguments(),
            **options,
            "kv_cache_dtype": "fp8_e4m3" if packed else "bfloat16",
        }

    def _model_config(self) -> ServerMock:
        config = super()._model_config()
        vars(config)["hf_config"] = ServerMock(
            "hf_config",
            architectures=["DeepseekV32ForCausalLM"],
            index_topk=self.sparse.geometry.top_k,
            index_kpool=1,
            hybrid_override_pattern=None,
            mtp_hybrid_override_pattern=None,
        )
        return config

    def _model_runner(self, config: ServerMock, own_rows: Any) -> ServerMock:
        runner = super()._model_runner(config, own_rows)
        # Without --enable-hisparse.
        vars(runner)["hisparse_coordinator"] = None
        return runner
