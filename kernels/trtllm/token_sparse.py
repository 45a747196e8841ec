"""Attention of FlashInfer's decode with `sparse_top_k`: each query has its own lists of keys and of values.

Since 0.7.4: "each query token attends to its own list of at most sparse_top_k KV tokens", as a request of its own over
pages of one token and one KV head (docstring of trtllm_batch_decode_with_kv_cache).
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Fill
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.token_sparse import DECODE
from attnfuzz.kernels.sparse.backend import SparseBackend
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.kernels.sparse.session import ChainSession
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import KvFormat, ListOrder, SparseMode, SparseOp

_MULTIPLE: Final = 4
"""A list's length is a multiple of it: "The kernel copies indices with 16-byte cp.async (four int32s)"."""


class TokenSparseSession(ChainSession):
    """A session whose attention is FlashInfer's decode. Values lie in the reverse order of keys, by their own lists."""

    backend, workspace_bytes = "auto", 0

    def launch(
        self, inputs: OpInputs, name: str, given: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Launch the decode. Returns its tensors."""
        keys, values, lists = given["keys"], given["values"], given["indices"]
        slots, top_k = len(keys), -(-lists.shape[1] // _MULTIPLE) * _MULTIPLE
        tables = torch.full((len(lists), 2, top_k), -1, dtype=torch.int32)
        tables[:, 0, : lists.shape[1]] = lists
        # Slots of the pool alone: other entries are behind a list.
        within = (lists >= 0) & (lists < slots)
        tables[:, 1, : lists.shape[1]] = torch.where(within, slots - 1 - lists, lists)
        arguments = {
            "query": given["query"],
            "kv_cache": (keys.unsqueeze(2), self.pool("reversed_values", values.cpu().flip(0)).unsqueeze(2)),
            "workspace_buffer": self._workspace(),
            "block_tables": tables,
            "seq_lens": given["topk_length"],
            "max_seq_len": top_k,
            "bmm1_scale": given["softmax_scale"],
            "backend": self.backend,
            "uses_shared_paged_kv_idx": False,
            "return_lse": True,
            "sparse_top_k": top_k,
        }
        return super().launch(inputs, name, arguments, outputs)

    def _workspace(self) -> torch.Tensor:
        if "workspace_buffer" not in self._pools:
            shape = (self.workspace_bytes,)
            made = self._bench.memory.tensor("workspace_buffer", shape, torch.uint8, fill=Fill.ZEROS)
            self._pools["workspace_buffer"] = made
        return self._pools["workspace_buffer"]


CAPABILITY: Final = SparseCapability(
    chains=((SparseOp.ATTENTION,),),
    modes=(SparseMode.EXTEND, SparseMode.DECODE, SparseMode.VERIFY),
    # Of a list without keys, which rows of padding have, nothing is said.
    padding=False,
    gaps=False,
    formats=(KvFormat.HEADS,),
    kv_heads=(1,),
    dims=((64, 64), (128, 128), (256, 256)),
    sinks=(False,),
    seconds=(False,),
    counts=(True,),
    ragged=(False,),
    powers=(False,),
    orders=tuple(each for each in ListOrder if each is not ListOrder.HOLES),
)


TOKEN_SPARSE: Final = SparseBackend(
    label="trtllm_token_sparse",
    own={"attention": DECODE},
    capability=CAPABILITY,
    contract=Contract(lse=LseBase.TWO),
    session=TokenSparseSession,
    noise_models={DType.BFLOAT16: NoiseModel.fp32_arithmetic()},
    load=build.load,
    why_not=build.missing,
)


def backends() -> tuple[SparseBackend, ...]:
    """Return the backend on native kernels."""
    return (TOKEN_SPARSE,)
