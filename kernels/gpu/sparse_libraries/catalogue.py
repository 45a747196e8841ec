"""All backends of sparse attention on a GPU."""

from attnfuzz.kernels.gpu.direct.sparse_top_k import FLASHINFER_TOP_K
from attnfuzz.kernels.gpu.sparse_libraries.deep_gemm import DEEP_GEMM
from attnfuzz.kernels.gpu.sparse_libraries.flash_mla import FLASH_MLA
from attnfuzz.kernels.gpu.sparse_libraries.sgl_kernel import SGL_KERNEL
from attnfuzz.kernels.gpu.sparse_libraries.token_sparse import TOKEN_SPARSE
from attnfuzz.kernels.sparse.backend import SparseBackend


def backends() -> tuple[SparseBackend, ...]:
    """Return all of them."""
    return (FLASHINFER_TOP_K, *FLASH_MLA, *DEEP_GEMM, *SGL_KERNEL, TOKEN_SPARSE)
