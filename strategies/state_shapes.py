"""Shapes of layers with recurrent state, and the lengths of prompts that they leave room for."""

from typing import TYPE_CHECKING, Any

from attnfuzz.reference.recurrent.case import StateOp, StateShape
from attnfuzz.reference.recurrent.features import dim_class, prompt_length, taps

if TYPE_CHECKING:
    from attnfuzz.kernels.recurrent.capability import StateCapability
    from attnfuzz.strategies.choices import Draws

PROMPTS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 62, 63, 64, 65, 66, 100, 127, 128, 129, 130, 193, 256, 257, 513, 1025)
_KEY_DIMS = (8, 16, 32, 64, 128, 24, 40, 7, 13, 100)
_VALUE_DIMS = (8, 16, 32, 64, 12, 33, 3, 48, 100)
_HEADS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (3, 2), (4, 1), (2, 3))
_CHANNELS = (1, 2, 3, 5, 8, 12, 17, 40)
_STATE_BUDGET = 1 << 16
"""Elements of a state times tokens of a prompt, relative to which prompts get shorter."""


def key_dims(can: Any) -> tuple[int, ...]:
    """Return the dims of keys that are drawn."""
    return (1,) if can.op is StateOp.CONV else can.key_dims or _KEY_DIMS


def value_dims(can: Any) -> tuple[int, ...]:
    """Return the dims of values that are drawn: the channels of a convolution."""
    if can.op is StateOp.CONV:
        return tuple(can.channels * each for each in _CHANNELS)
    if can.op is StateOp.SSM_OF_CHANNELS:
        return (1,)
    return key_dims(can) if can.square else can.value_dims or _VALUE_DIMS


def draw_shape(draws: "Draws", can: Any) -> StateShape:
    """Draw heads and dims that a backend has."""
    if can.op is StateOp.CONV:
        channels = draws.of("state value dim", value_dims(can), dim_class)
        return StateShape(
            heads=1, value_heads=1, key_dim=1, value_dim=channels, width=draws.of("taps", can.widths, taps)
        )
    key_dim = draws.of("state key dim", key_dims(can), dim_class)
    if can.op is StateOp.SSM_OF_CHANNELS:
        heads = draws.of("groups", can.value_dims or _VALUE_DIMS, _of_heads)
        return StateShape(heads=1, value_heads=heads, key_dim=key_dim, value_dim=1)
    value_dim = key_dim if can.square else draws.of("state value dim", value_dims(can), dim_class)
    heads, group = draws.of("groups", _HEADS if can.grouped else _UNGROUPED, _grouping)
    return StateShape(heads=heads, value_heads=heads * group, key_dim=key_dim, value_dim=value_dim)


_UNGROUPED = tuple((heads, 1) for heads, _ in _HEADS)


def _grouping(heads: tuple[int, int]) -> str:
    return "groups" if heads[1] > 1 else "heads" if heads[0] > 1 else "one head"


def _of_heads(value_heads: int) -> str:
    return _grouping((1, value_heads))


def longest_prompt(can: "StateCapability", shape: StateShape) -> int:
    """Return the most tokens of a prompt with states of this shape."""
    size = shape.value_heads * shape.key_dim * shape.value_dim
    return min(can.most_tokens, max(PROMPTS[4], 64 * _STATE_BUDGET // max(size, 1)))


def prompts(can: Any) -> set[str]:
    """Return the classes of the lengths of prompts that are drawn."""
    classes = {prompt_length(tokens) for tokens in PROMPTS if tokens <= can.most_tokens}
    return classes | {"none"} if can.empty_rows else classes
