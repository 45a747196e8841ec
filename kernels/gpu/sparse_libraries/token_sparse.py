"""FlashInfer's decode with `sparse_top_k`, since 0.7.4, on trtllm-gen's kernels for SM100 and SM103.

It has not been run on a GPU.
"""

from functools import partial
from typing import Final

from msgspec.structs import replace

from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.gpu import modules
from attnfuzz.kernels.gpu.blackwell import ARCHS, BLACKWELL, GENERATED, WORKSPACE
from attnfuzz.kernels.gpu.direct.sparse_top_k import CompiledSparseBackend
from attnfuzz.kernels.trtllm.token_sparse import CAPABILITY, TokenSparseSession
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device


class BlackwellTokenSparseSession(TokenSparseSession):
    """A session on trtllm-gen's kernels."""

    backend, workspace_bytes = "trtllm-gen", WORKSPACE.total


TOKEN_SPARSE: Final = CompiledSparseBackend(
    label="blackwell:trtllm_token_sparse",
    needed=(GENERATED,),
    archs=ARCHS,
    own={"attention": BLACKWELL.decode},
    capability=replace(CAPABILITY, device=Device.CUDA),
    contract=Contract(lse=LseBase.TWO),
    session=BlackwellTokenSparseSession,
    load=partial(modules.build, (GENERATED,)),
    why_not=partial(visible.missing, ARCHS, ("flashinfer",)),
)
