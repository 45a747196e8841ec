"""Contents as Python source: short, and the same numbers again."""

import base64
import zlib
from math import inf, nan

import pytest
import torch

from attnfuzz.harness.export.body import ScriptContents
from attnfuzz.harness.export.python_source import variables
from attnfuzz.reference.calls import Buffer, Drawn, pack
from attnfuzz.reference.case import Outputs
from attnfuzz.reference.dtypes import DType


def buffer_of(tensor: torch.Tensor) -> Buffer:
    data = tensor.view(torch.uint8).numpy().tobytes()
    return Buffer(name="x", dtype=DType.of(tensor.dtype), size=tensor.numel(), bits=pack(data))


def filled(*runs: tuple[int, float]) -> torch.Tensor:
    return torch.cat([torch.full((count,), value) for count, value in runs])


@pytest.mark.parametrize(
    ("tensor", "source"),
    [
        (torch.tensor([3, 1, 2], dtype=torch.int32), "[3, 1, 2]"),
        (torch.tensor([7] * 9 + [0], dtype=torch.int64), "[7, 7, 7, 7, 7, 7, 7, 7, 7, 0]"),
        (torch.tensor([0] * 1000 + [173] * 500, dtype=torch.uint8), "filled((1000, 0), (500, 173))"),
        (torch.tensor([1.0, 1.0, -0.0, inf, -inf, nan]).to(torch.bfloat16), None),
        (torch.tensor([0.1] * 3).to(torch.float8_e4m3fn), "filled((3, 0.1015625))"),
        (torch.tensor([True, False, True]), "[1, 0, 1]"),
        (torch.empty(0), "[]"),
    ],
    ids=["numbers", "few runs", "many equal", "special", "fp8", "bool", "empty"],
)
def test_contents_come_back_as_they_were(tensor: torch.Tensor, source: str | None) -> None:
    written = ScriptContents(Outputs.POISONED).source(buffer_of(tensor), "x")
    assert source is None or written == source
    names = {"filled": filled, "nan": nan, "inf": inf, "__builtins__": {}}
    again = torch.as_tensor(eval(written, names)).to(tensor.dtype)  # noqa: S307 - what this project wrote
    bits = DType.of(tensor.dtype).bits
    same = again.view(bits) == tensor.view(bits)
    # Of a NaN it only matters that it is one.
    assert bool((same | (again.isnan() & tensor.isnan())).all() if tensor.is_floating_point() else same.all())


def test_content_without_a_pattern_is_packed() -> None:
    contents = ScriptContents(Outputs.POISONED)
    numbers = torch.randn(64, generator=torch.Generator().manual_seed(0))
    assert contents.source(buffer_of(numbers), "the key") == 'packed("the key")'
    data = zlib.decompress(base64.b64decode(contents.packed["the key"]))
    assert torch.equal(torch.frombuffer(bytearray(data), dtype=torch.float32), numbers)


def test_outputs_are_unwritten_or_stale() -> None:
    out = Buffer(name="out", dtype=DType.FLOAT16, size=9)
    assert ScriptContents(Outputs.POISONED).source(out, "out") == "filled((9, nan))"
    assert ScriptContents(Outputs.STALE).source(out, "out") == "normal(9, seed=0)"
    assert ScriptContents(Outputs.STALE).source(Buffer(name="n", dtype=DType.INT32, size=9), "n") == "filled((9, 1))"


def test_drawn_contents_are_a_seed() -> None:
    drawn = Buffer(name="k", dtype=DType.BFLOAT16, size=1 << 20, drawn=Drawn(seed=4))
    assert ScriptContents(Outputs.POISONED).source(drawn, "k") == "normal(1048576, seed=4)"


def test_variables_are_valid_and_differ() -> None:
    names = variables(["query", "arg 0", "class", "arg_0", "", "1st", "torch", "größe"], {"torch"})
    assert list(names.values()) == ["query", "arg_0", "_class", "arg_0_2", "_", "_1st", "torch_2", "gr__e"]
    assert all(name.isidentifier() for name in names.values())
