"""SGLang's Triton kernels of attention, in the interpreter: their noise, and the cases that are too long for it."""

from typing import Final

import torch

from attnfuzz.kernels.libraries.interpreted import check_size
from attnfuzz.reference.case import Case, Mode, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel

_NOISE: Final = {
    DType.FLOAT32: NoiseModel.fp32_arithmetic(),
    # The weights are converted to the dtype of V for the second product (0.5.9: layers/attention/triton_ops/
    # decode_attention.py and extend_attention.py, `p.to(v.dtype)`).
    DType.FLOAT16: NoiseModel.rounded_probabilities(torch.float16),
}

_SPLITS: Final = 8
"""Parts into which a decode splits the keys of a request (0.5.9: server_args.py, triton_attention_num_kv_splits)."""

_TILE: Final = 32
"""Fewest queries, and fewest keys, of a tile in these kernels."""


def noise(dtype: DType) -> NoiseModel:
    """Return the noise of the kernels."""
    return _NOISE[dtype]


def check_case(case: Case) -> None:
    """Raise Unsupported for a case with a step of too many programs or tiles of keys."""
    for step in case.steps:
        blocks = [-(-request.q_len // _TILE) for request in step.requests]
        splits = 1 if _extends(step) else _SPLITS
        keys = [-(-request.kv_len // _TILE) for request in step.requests]
        padding = step.padded_batch - len(step.requests)
        heads = case.geometry.q_heads
        check_size(
            programs=heads * (sum(blocks) + padding) * splits,
            tiles=heads * sum(rows * tiles for rows, tiles in zip(blocks, keys, strict=True)),
        )


def _extends(step: Step) -> bool:
    """Return whether a step runs on the kernel for several queries of a request."""
    return step.mode not in (Mode.DECODE, Mode.DRAFT_DECODE)
