"""The earlier uses of FlashInfer's objects that make sense, by class.

An object is planned for other layers only if there are modules for them, which are those of its backend's buckets.
"""

from collections.abc import Callable, Sequence
from typing import Final

from attnfuzz.kernels.gpu.wrappers.other_layers import uses_of
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket

_U = EarlierUse
_Uses = tuple[EarlierUse, ...]
UsesOf = Callable[[Sequence[Bucket]], _Uses]
"""The uses of a class whose backend has these buckets."""

_ROWS: Final[_Uses] = (_U.PLANNED_ALIKE, _U.PLANNED_FEWER, _U.PLANNED_MORE)
_PLANS: Final[_Uses] = (*_ROWS, _U.PLANNED_OTHER_SCALE)
_MASKLESS: Final = _U.PLANNED_WITHOUT_MASK
_SPLITS: Final[_Uses] = (_U.PLANNED_SPLIT, _U.PLANNED_UNSPLIT)
_FREE: Final[_Uses] = (_U.OVERWRITTEN, _U.COPIED, _U.RAN_BEFORE, _U.OTHER_STREAM)
_RUNS: Final[_Uses] = (_U.RESET, _U.NEIGHBOUR, *_FREE)
_ALL: Final[_Uses] = (*_PLANS, *_RUNS)


def _life(*uses: EarlierUse, among: _Uses | None = None) -> UsesOf:
    """Add the plans for other layers to `uses`: all, or those `among` some."""

    def of(buckets: Sequence[Bucket]) -> _Uses:
        layers = uses_of(buckets)
        chosen = {*uses, *(layers if among is None else set(layers).intersection(among))}
        return tuple(use for use in EarlierUse if use in chosen)

    return of


of_fa2: Final = _life(*_ALL, _MASKLESS, _U.PLANNED_CUSTOM_MASK, *_SPLITS)
"""BatchPrefillWithRaggedKVCacheWrapper on FA2."""
of_fa2_paged: Final = _life(*_ALL, _MASKLESS, _U.PLANNED_CUSTOM_MASK, *_SPLITS, _U.PLANNED_LENGTHS)
"""BatchPrefillWithPagedKVCacheWrapper on FA2."""
of_fa3: Final = _life(*_ALL, _MASKLESS)
"""BatchPrefillWithRaggedKVCacheWrapper on FA3."""
of_fa3_paged: Final = _life(*_ALL, _MASKLESS, _U.PLANNED_LENGTHS)
"""BatchPrefillWithPagedKVCacheWrapper on FA3."""
of_decode: Final = _life(*_ALL, _U.PLANNED_UNSPLIT, _U.PLANNED_LENGTHS)
"""BatchDecodeWithPagedKVCacheWrapper on CUDA cores, and on tensor cores of FA3."""
of_decode_on_tensor_cores: Final = _life(*_ALL, *_SPLITS, _U.PLANNED_LENGTHS)
"""The same on tensor cores of FA2."""
of_graph_decode: Final = _life(
    _U.PLANNED_ALIKE, _U.PLANNED_OTHER_SCALE, _U.OVERWRITTEN, _U.COPIED, _U.RAN_BEFORE, _U.NEIGHBOUR, among=()
)
"""CUDAGraphBatchDecodeWithPagedKVCacheWrapper, whose batch and addresses are final."""
of_sinks: Final = _life(*_ALL, _MASKLESS, _U.PLANNED_LENGTHS, _U.PLANNED_OTHER_HEADS, among=())
"""BatchAttentionWithAttentionSinkWrapper: its constructor is given the head dims, the dtypes and whether there is a
window, and compiles no soft cap."""
of_sinks_decode: Final = _life(*_ALL, _U.PLANNED_LENGTHS, _U.PLANNED_OTHER_HEADS, among=())
"""BatchDecodeWithAttentionSinkWrapper, whose constructor is given the same."""
of_levels: Final = _life(*_ALL, _MASKLESS)
"""MultiLevelCascadeAttentionWrapper."""
of_prefix: Final = _life(*_ROWS, *_RUNS)
"""Batch{Decode,Prefill}WithSharedPrefixPagedKVCacheWrapper: the scale is an argument of their run."""
of_pod: Final = _life(*_ALL)
"""PODWithPagedKVCacheWrapper."""
of_batch_pod: Final = _life(*_PLANS, *_FREE, _U.NEIGHBOUR)
"""BatchPODWithPagedKVCacheWrapper, which has no method that replaces its workspaces."""
of_block_sparse: Final = _life(_U.PLANNED_ALIKE, _U.PLANNED_FEWER, _U.PLANNED_OTHER_SCALE, *_RUNS)
"""BlockSparseAttentionWrapper. Twice the requests would be four times the matrix."""
of_variable_sparse: Final = _life(_U.PLANNED_ALIKE, _U.PLANNED_FEWER, _U.PLANNED_OTHER_SCALE, *_RUNS, among=())
"""VariableBlockSparseAttentionWrapper, whose matrix is that of the layer's heads."""
of_holistic: Final = _life(*_PLANS, _MASKLESS, *_FREE)
"""BatchAttention, which owns its workspaces."""
of_mla: Final = _life(*_PLANS, _MASKLESS, *_FREE, among=())
"""BatchMLAPagedAttentionWrapper. It refuses batches by their heads (Unsupported), so no plan is for others."""
