"""The gated delta rule of Hugging Face transformers in torch, as Qwen3-Next runs without FLA's kernels.

A row is a batch of one: the model gathers a request's state from its cache, and writes the new one back.
"""

from collections.abc import Callable
from functools import cache
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


def _by_rows(function: Callable[..., Any], given: dict[str, Any]) -> None:
    query, key, value = given["query"], given["key"], given["value"]
    group, state, starts = value.shape[1] // key.shape[1], given["state"], given["cu_seqlens"].tolist()
    query, key = (each.repeat_interleave(group, 1) for each in (query, key))
    for row, slot in enumerate(given["slots"].tolist()):
        tokens = slice(starts[row], starts[row + 1])
        if tokens.start == tokens.stop:
            continue
        parts = (each[tokens].unsqueeze(0) for each in (query, key, value, given["log_decay"], given["beta"]))
        initial = state[slot].unsqueeze(0) if given["has_initial_state"][row] else None
        out, final = function(
            *parts, initial_state=initial, output_final_state=True, use_qk_l2norm_in_kernel=given["normed"]
        )
        given["out"][tokens] = out[0]
        state[slot] = final[0]


def prefill(
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
    """Run each row by torch_chunk_gated_delta_rule."""
    _by_rows(_functions().torch_chunk_gated_delta_rule, locals())


def decode(
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
    """Run each row by torch_recurrent_gated_delta_rule."""
    _by_rows(_functions().torch_recurrent_gated_delta_rule, locals())


GATED_DELTA = LibraryStates(
    label="transformers:gated_delta_rule",
    functions={StateMode.PREFILL: prefill, StateMode.DECODE: decode},
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
