"""Scripts of writers: the functions that they include, and their comparison of caches."""

import ast
import builtins
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_cases import calls_of
from msgspec.structs import replace
from small_cases import HEADS, LATENTS, step

import attnfuzz.harness.export
from attnfuzz.harness.export import export_script, target
from attnfuzz.harness.export.python_source import inlined
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.cache_writes.native import NATIVE_WRITERS, NativeWriter
from attnfuzz.reference import nvfp4
from attnfuzz.reference.calls import pack
from attnfuzz.reference.case import Case, Granularity, Mode, Scales
from attnfuzz.reference.dtypes import DType

TEMPLATE = Path(attnfuzz.harness.export.__file__).parent / "caches.py.j2"


@pytest.mark.parametrize("writer", NATIVE_WRITERS, ids=lambda each: each.name)
def test_the_source_of_a_native_writer_has_all_functions_that_it_calls(writer: NativeWriter) -> None:
    text = inlined(target._MODULES, [writer.function.__name__], {"build.load()": "native()"})
    tree = ast.parse(text)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert called - defined - set(dir(builtins)) == {"native"}


@pytest.mark.parametrize("name", ["native:append_nvfp4", "native:reshape_and_cache_nvfp4"])
def test_a_write_of_nvfp4_is_judged_in_a_script_as_in_memory(name: str, runner: Runner) -> None:
    # In a worker, which alone makes traces.
    writer = next(each for each in NATIVE_WRITERS if each.name == name)
    geometry = replace(HEADS, kv_dtype=DType.FLOAT4_E2M1, head_dim_qk=64, head_dim_vo=64)
    can = writer.capability
    case = Case(
        backend=name,
        geometry=geometry,
        steps=(step(Mode.EXTEND, (3, 7), (2, 2)),),
        padded_slot=can.padded_slots[0],
        scales=Scales(granularity=Granularity.BLOCK, blocks=can.block_scales[0]),
    )
    calls = calls_of(runner, case)
    assert [each.name for each in calls.written] == ["k_cache", "v_cache", "k_scales", "v_scales"]
    assert not runner.verdict(calls).observations
    text = export_script(case, runner)
    assert text.count("compare_cache(") == 5
    # Every number of the new tokens has to be 1.
    low, high = calls.written[0].low, calls.written[0].high
    assert high is not None
    ones = pack(bytes([0x38]) * math.prod(low.shape))
    bounds = {low.buffer, high.buffer}
    buffers = tuple(replace(each, bits=ones) if each.name in bounds else each for each in calls.buffers)
    found = runner.verdict(replace(calls, buffers=buffers)).observations
    assert {(each.kind, each.place) for each in found} == {(Kind.WRITE_MISMATCH, "k_cache")}


@pytest.mark.parametrize("planted", ["", "+gather_start_rounded_to_a_page"])
def test_a_gather_is_judged_by_its_calls_as_in_the_backend(planted: str, runner: Runner) -> None:
    """The pool that it reads has no new tokens, the rows have all. In a worker, which alone makes traces."""
    name = f"native:gather_mla{planted}"
    (can,) = (each.capability for each in NATIVE_WRITERS if each.name == "native:gather_mla")
    extend = step(Mode.CHUNKED_PREFILL, (1, 4))
    case = Case(backend=name, geometry=LATENTS, steps=(extend,), padded_slot=can.padded_slots[0], chunk_capacity=2)
    verdict, calls = runner.trace(case)
    assert calls is not None
    assert [each.places.shape[1] for each in calls.written] == [0, 2]
    assert bool(verdict.failures) is bool(runner.verdict(calls).failures) is bool(planted)


def test_a_script_reads_bytes_of_nvfp4_and_swizzled_scales() -> None:
    space: dict[str, Any] = {"torch": torch}
    exec(TEMPLATE.read_text(), space)  # noqa: S102 - a template without variables
    codes = torch.arange(16, dtype=torch.uint8).view(1, 1, 1, 16)
    assert torch.equal(space["numbers"](nvfp4.packed(codes)).float(), nvfp4.numbers(codes))
    rows = torch.rand(2, 8, 3, 8)
    memory = torch.zeros_like(rows)
    for slot in range(8):
        for block in range(8):
            # As nvfp4.py states it: scale (t // 4) * 4 S + 4 s + t % 4.
            at = slot // 4 * 32 + 4 * block + slot % 4
            memory[:, at // 8, :, at % 8] = rows[:, slot, :, block]
    grouped = memory.unflatten(1, (2, 4)).unflatten(-1, (2, 4))
    view = grouped.permute(0, 1, 5, 3, 2, 4)
    assert torch.equal(space["numbers"](view), rows)


def compare_cache() -> Callable[..., bool]:
    """The function that scripts have."""
    space: dict[str, Any] = {"torch": torch}
    exec(TEMPLATE.read_text(), space)  # noqa: S102 - a template without variables
    found: Callable[..., bool] = space["compare_cache"]
    return found


@pytest.mark.parametrize(
    ("held", "low", "high", "wrong"),
    [
        (448.0, 448.0, float("nan"), False),
        (float("nan"), 448.0, float("nan"), False),
        (416.0, 448.0, float("nan"), True),
        (448.0, float("nan"), float("nan"), True),
    ],
)
def test_a_bound_of_nan_allows_nan_beside_the_other_bound(held: float, low: float, high: float, wrong: bool) -> None:
    before = torch.zeros(1, 2, 1, 1, dtype=torch.float8_e4m3fn)
    after = before.clone()
    after.view(torch.uint8)[0, 1] = torch.tensor(held).to(torch.float8_e4m3fn).view(torch.uint8)
    places = torch.tensor([[0], [1], [0], [0]])
    bounds = (torch.full((1, 1, 1), each).to(torch.float8_e4m3fn) for each in (low, high))
    free = torch.zeros(2, 0, dtype=torch.int64)
    assert compare_cache()("k_cache", before, after, places, *bounds, free) is wrong
