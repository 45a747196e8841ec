"""The gated delta rule of Hugging Face transformers in torch, as Qwen3-Next runs without FLA's kernels.

A row is a batch of one: the model gathers a request's state from its cache, and writes the new one back.
"""

from functools import cache, partial
from typing import Any

import torch

from attnfuzz.kernels.libraries.installed import LibraryStates
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import StateMode, StateOp
from attnfuzz.reference.recurrent.noise import StateNoise


@cache
def _functions() -> Any:
    from transformers.models.qwen3_next import modeling_qwen3_next  # noqa: PLC0415 - in workers alone

    return modeling_qwen3_next


def by_rows(
    kernel: str,
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
    normed: bool,
) -> None:
    """Run each row by the function `kernel` of transformers."""
    function, starts = getattr(_functions(), kernel), cu_seqlens.tolist()
    query, key = (each.repeat_interleave(value.shape[1] // key.shape[1], 1) for each in (query, key))
    for row, slot in enumerate(slots.tolist()):
        tokens = slice(starts[row], starts[row + 1])
        if tokens.start == tokens.stop:
            continue
        parts = (each[tokens].unsqueeze(0) for each in (query, key, value, log_decay, beta))
        initial = state[slot].unsqueeze(0) if has_initial_state[row] else None
        result, final = function(*parts, initial_state=initial, output_final_state=True, use_qk_l2norm_in_kernel=normed)
        out[tokens] = result[0]
        state[slot] = final[0]


GATED_DELTA = LibraryStates(
    label="transformers:gated_delta_rule",
    functions={
        StateMode.PREFILL: partial(by_rows, "torch_chunk_gated_delta_rule"),
        StateMode.DECODE: partial(by_rows, "torch_recurrent_gated_delta_rule"),
    },
    capability=StateCapability(
        op=StateOp.GATED_DELTA,
        dtypes=(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
        state_dtypes=(DType.FLOAT32,),
        normed=(False, True),
        given=True,
    ),
    noise_model=StateNoise(),
    noises={StateMode.PREFILL: StateNoise(operands=2.0**-21, prefix=2.0**-24)},
    extra="transformers",
    packages={"transformers": "5.23", "torch": "2.7"},
)
TRANSFORMERS_STATES = (GATED_DELTA,)
