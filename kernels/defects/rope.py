"""Defects of the rotary embedding before a write: in positions, and in tables of cosines and sines."""

import functools
from dataclasses import replace
from typing import Any, Final

import torch
from msgspec.structs import replace as replace_struct

from attnfuzz.kernels.cache_writes.native import NativeWriter
from attnfuzz.kernels.cache_writes.new_tokens import Metadata
from attnfuzz.kernels.cache_writes.rope_session import RopeMetadata, RopeSession, RotationSession
from attnfuzz.kernels.cache_writes.rotation import cos_sin_table
from attnfuzz.kernels.defects.defect import BugClass, WriteDefect
from attnfuzz.kernels.defects.slots import KeepsFirst, WriteGroup
from attnfuzz.reference.case import Step
from attnfuzz.reference.rope import RopeScaling

DEFECTS: Final[list[WriteDefect]] = []

_ROPE = WriteGroup(DEFECTS, BugClass.ROPE)


@_ROPE.add("rope_shift_ignored", "VeloxQuant-MLX PR #138", "native:rope_append_mla")
class RotatesByPlace(RopeMetadata):
    """The place of a token in the cache is used as its position."""

    def _of_tokens(self, step: Step, rows: int) -> Metadata:
        metadata = super()._of_tokens(step, rows)
        return metadata | {"rope_positions": metadata["positions"].long()}


@_ROPE.add("rope_position_of_padding", "ColossalAI PR #6444 (positions beside the tokens)", "native:rope_append")
class RotatesByPadding(RopeMetadata):
    """The positions start with those of padding, so tokens are rotated by the positions of others."""

    def _of_tokens(self, step: Step, rows: int) -> Metadata:
        metadata = super()._of_tokens(step, rows)
        return metadata | {"rope_positions": metadata["rope_positions"].roll(step.padded_tokens - step.tokens)}


@_ROPE.add("rope_positions_of_first_replay", "SGLang PR #10892", "native:rope_quantise")
class KeepsFirstRopePositions(KeepsFirst, RotationSession):
    """Replays rotate by the positions of the first replay."""

    kept = ("rope_positions",)


@_ROPE.add("scaled_table_extended_without_scaling", "SGLang PR #38786", "native:rope_append")
class ExtendsTablePlainly(RopeSession):
    """The table of scaled frequencies starts with 64 rows; rows added for later positions are not scaled."""

    def _cos_sin(self, rows: int) -> torch.Tensor:
        plain = cos_sin_table(replace_struct(self._rope, scaling=RopeScaling.NONE), rows, self._dim)
        return torch.cat((super()._cos_sin(rows)[:64], plain[64:]))


@_ROPE.add("yarn_magnitude_left_out", "exllamav3 issue #259", "native:rope_quantise")
class LeavesOutMagnitude(RotationSession):
    """YaRN's cosines and sines lack the attention factor."""

    def _cos_sin(self, rows: int) -> torch.Tensor:
        return super()._cos_sin(rows) / self._rope.scaling.magnitude


@_ROPE.add("llama31_scaling_dropped", "unsloth PR #6197", "native:rope_mla")
class DropsScaling(RotationSession):
    """Llama 3.1's scaling of low frequencies is dropped."""

    def _cos_sin(self, rows: int) -> torch.Tensor:
        dropped = self._rope.scaling is RopeScaling.LLAMA31
        rope = replace_struct(self._rope, scaling=RopeScaling.NONE) if dropped else self._rope
        return cos_sin_table(rope, rows, self._dim)


@_ROPE.add("rotated_key_not_written_back", "SGLang PR #19636", "native:rope_store")
def leave_key(writer: NativeWriter) -> NativeWriter:
    """Keys are rotated in the cache, but not in the tensor that attention reads."""

    @functools.wraps(writer.function)
    def function(*, key: torch.Tensor, **arguments: Any) -> Any:
        return writer.function(key=key.clone(), **arguments)

    return replace(writer, function=function)
