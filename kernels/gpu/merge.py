"""FlashInfer's merging of two attention states, and the module that it is compiled from."""

from typing import Any

from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.gpu.module import Module

MERGE_STATE_IN_PLACE = flashinfer_op("flashinfer.cascade", "merge_state_in_place", frozenset({"v", "s"}))


def _spec() -> Any:
    from flashinfer.jit import cascade  # noqa: PLC0415 - it creates a CUDA context

    return cascade.gen_cascade_module()


MERGE_MODULE = Module("merging of attention states", _spec)
