"""FlashInfer's metadata of a call: `metadata.jsonl` of log level 10, flashinfer/api_logging.py."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import torch

from attnfuzz.harness.dumps.recorded import DumpError, ForeignTensor, OtherValue, Recorded
from attnfuzz.harness.verdict.printable import printable, shortened

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]

Record = TypeVar("Record", bound=msgspec.Struct)

# Quantized tensors are not plain numbers.
_DTYPES: Final = {
    str(each): each
    for each in vars(torch).values()
    if isinstance(each, torch.dtype) and not str(each).startswith(("torch.q", "torch.bits"))
}


class TensorDetails(msgspec.Struct, frozen=True):
    """A tensor's form when written: after the copy to the host, except in a captured call."""

    shape: tuple[Size, ...]
    dtype: str
    stride: tuple[Size, ...]
    device: str = "cpu"


class TensorInfo(msgspec.Struct, frozen=True):
    """The names of a call's tensors."""

    input_tensor_keys: tuple[str, ...]
    output_tensor_keys: tuple[str, ...] = ()


class Metadata(msgspec.Struct, frozen=True):
    """The required keys, and those that other versions of FlashInfer may leave out; further ones are ignored.

    `input_metadata` has the non-tensor arguments, and those that hold tensors.
    """

    function_name: str
    call_sequence: int
    process_id: int
    execution_status: str
    input_metadata: dict[str, Any]
    tensor_info: TensorInfo
    tensor_details: dict[str, TensorDetails]
    output_metadata: dict[str, Any] = {}
    module: str = ""
    function_signature: str = ""
    versions: dict[str, str] = {}
    graph_capture: bool = False
    self_id: int | None = None


def metadata_of(record: dict[str, Any], path: Path) -> Metadata:
    """Parse the metadata in a record of the file at `path`. Raises DumpError."""
    needed = [field.encode_name for field in msgspec.structs.fields(Metadata) if field.required]
    missing = [name for name in needed if name not in record]
    if missing:
        lacking = f"{path} lacks {', '.join(missing)}"
        raise DumpError(f"{lacking}: it is not a dump, or is from an unknown version of FlashInfer")
    metadata = converted(record, Metadata, path)
    name = metadata.function_name
    if not name or not name.isprintable() or len(name) > 200:
        raise DumpError(f"{path} names no function: function_name is {name[:50]!r}")
    return metadata


def converted(value: Any, record: type[Record], path: Path) -> Record:
    """Convert foreign data to its type. Raises DumpError."""
    try:
        return msgspec.convert(value, record)
    except msgspec.ValidationError as error:
        raise DumpError(f"{path} has unexpected contents: {error}") from error


def dtype_of(name: str, path: Path) -> torch.dtype:
    """Return the dtype with this name in FlashInfer's metadata. Raises DumpError."""
    if name not in _DTYPES:
        raise DumpError(f"{path} has the dtype {name[:50]!r}, which torch {torch.__version__} does not support")
    return _DTYPES[name]


_TEXT = 1000
"""Most characters of a text: FlashInfer's limit for objects, ours for everything."""


class Described(msgspec.Struct, frozen=True):
    """A value that is not a number, text or None: its `type`, and the fields recorded for it."""

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
    """Convert a value of the file at `path`; `tensor` finds one by its key and description. Raises DumpError."""
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
    # Older versions of FlashInfer keep only the text of a list, even of tensors.
    text = described.value if isinstance(described.value, str) else described.repr
    return OtherValue(printable(described.type), _text(raw if text is None else text))


def _member(raw: Any, tensor: Callable[[str, Described], ForeignTensor], path: Path) -> ForeignTensor | None:
    """Return a member of a list if it is a tensor, None otherwise."""
    if not isinstance(raw, dict) or raw.get("type") != "torch.Tensor":
        return None
    described = converted(raw, Described, path)
    return None if described.tensor_key is None else tensor(described.tensor_key, described)


def _text(content: Any) -> str:
    return printable(shortened(content if isinstance(content, str) else json.dumps(content), _TEXT))


@dataclass(frozen=True)
class Positional:
    """The parameters that take positional arguments, in order; `rest` takes all further ones."""

    names: tuple[str, ...]
    rest: str | None = None

    def name(self, index: int) -> str | None:
        """Return the name of the argument at this position, None if there is none."""
        if index < len(self.names):
            return self.names[index]
        return None if self.rest is None else f"{self.rest}[{index - len(self.names)}]"


def positional(function: str, recorded: str) -> Positional:
    """Parse the parameters of a function from the signature in a dump. Its names are not evaluated.

    Raises:
        DumpError: the text is no signature.

    """
    found = parse(recorded)
    if found is None:
        raise DumpError(f"the arguments of {function} can't be named: the dump has no function_signature; dump again")
    return found


def parse(signature: str) -> Positional | None:
    """Parse the positional parameters in a signature as `inspect` prints it; None if the text is not a signature."""
    names: list[str] = []
    parameters = _split(signature)
    if parameters is None:
        return None
    for parameter in parameters:
        name = parameter.split(":", 1)[0].split("=", 1)[0].strip()
        if name.startswith("*"):
            # Only keywords follow.
            return Positional(tuple(names), name[1:] if name[1:].isidentifier() else None)
        if name.isidentifier():
            names.append(name)
        elif name != "/":
            return None
    return Positional(tuple(names))


def _split(signature: str) -> list[str] | None:
    """Split a signature at the commas of its outermost parentheses, which may enclose more of either."""
    found, begin, depth, quote, escaped = [], 1, 0, "", False
    for index, char in enumerate(signature):
        if quote:
            if char == quote and not escaped:
                quote = ""
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}" or (char == "," and depth == 1):
            depth -= char != ","
            if depth == 0 or char == ",":
                found.append(signature[begin:index].strip())
                begin = index + 1
            if depth == 0:
                return [text for text in found if text] if signature.startswith("(") else None
    return None
