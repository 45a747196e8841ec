"""Arguments and results as FlashInfer describes them in JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from attnfuzz.harness.dumps.metadata import Size, converted, dtype_of
from attnfuzz.harness.dumps.recorded import ForeignTensor, OtherValue, Recorded
from attnfuzz.harness.verdict.printable import printable, shortened

_TEXT = 1000
"""Characters that FlashInfer keeps of an object's text, and we of everything else."""


class Described(msgspec.Struct, frozen=True):
    """A value that is no number, text or None: `type`, and what FlashInfer keeps of that type."""

    type: str
    value: Any = None
    name: str = ""
    repr: str | None = None
    items: list[Any] | None = None
    shape: tuple[Size, ...] = ()
    dtype: str = ""
    stride: tuple[Size, ...] = ()
    tensor_key: str | None = None


def recorded_value(raw: Any, tensor: Callable[[str, Described], ForeignTensor], path: Path) -> Recorded:
    """A value of the file at `path`; `tensor` finds one by its key and description. Raises DumpError."""
    if raw is None or isinstance(raw, int | float | str):
        return raw
    described = converted(raw, Described, path)
    if described.type == "torch.Tensor" and described.tensor_key is not None:
        return tensor(described.tensor_key, described)
    if described.type == "torch.dtype":
        return dtype_of(str(described.value), path)
    if described.type in {"list", "tuple"} and described.items is not None:
        members = [_member(item, tensor, path) for item in described.items]
        if None not in members:
            return tuple(member for member in members if member is not None)
    if described.type == "enum":
        return OtherValue(printable(described.name.split(".")[0]), _text(described.name))
    # FlashInfer's older versions keep of a list, even of tensors, no more than its text.
    text = described.value if isinstance(described.value, str) else described.repr
    return OtherValue(printable(described.type), _text(raw if text is None else text))


def _member(raw: Any, tensor: Callable[[str, Described], ForeignTensor], path: Path) -> ForeignTensor | None:
    """A member of a list that is a tensor, None for everything else."""
    if not isinstance(raw, dict) or raw.get("type") != "torch.Tensor":
        return None
    described = converted(raw, Described, path)
    return None if described.tensor_key is None else tensor(described.tensor_key, described)


def _text(content: Any) -> str:
    return printable(shortened(content if isinstance(content, str) else json.dumps(content), _TEXT))
