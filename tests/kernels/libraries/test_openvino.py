"""OpenVINO's PagedAttention as a backend: its blocks, its u8 cache, and that it passes where it should."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from repetition import examples
from small_cases import HEADS, drawn, lighter, passed, run, step

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.functions.function_backend import FunctionSession
from attnfuzz.kernels.libraries import openvino
from attnfuzz.kernels.libraries.openvino import F32, OPENVINO_BACKENDS, HeldTokens, arrange
from attnfuzz.kernels.libraries.openvino_blocks import BY_CHANNEL, BY_TOKEN, Blocks, Codec
from attnfuzz.kernels.libraries.requests import DenseRequest
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout

PAGED = OPENVINO_BACKENDS[0]
GEOMETRY = msgspec.structs.replace(HEADS, kv_layout=KvLayout.NHD)
STEPS = (
    step(Mode.DECODE, (1, 1), (1, 40), (1, 7)),
    step(Mode.EXTEND, (3, 3), (0, 5), (1, 9), (7, 7), (2, 33)),
    step(Mode.TARGET_VERIFY, (4, 4), (4, 21), stride=4),
)

needs_library = pytest.mark.skipif(PAGED.missing() is not None, reason="needs openvino")


def geometry(name: str, window_left: int = -1) -> Geometry:
    dtype = DType.BFLOAT16 if "bf16" in name else DType.FLOAT32
    return msgspec.structs.replace(GEOMETRY, dtype=dtype, kv_dtype=dtype, window_left=window_left, sinks=True)


@needs_library
@pytest.mark.parametrize("window_left", [-1, 0, 5])
@pytest.mark.parametrize("name", [each.name for each in OPENVINO_BACKENDS if each.missing() is None])
def test_batches_of_all_kinds_pass(name: str, window_left: int) -> None:
    assert passed(Case(backend=name, geometry=geometry(name, window_left), steps=STEPS)).rows


@needs_library
@pytest.mark.slow
@examples(20, 100)
def test_drawn_cases_pass(count: int) -> None:
    for case in lighter(drawn(PAGED.name, count)):
        assert run(case).observations == ()


def test_the_plugin_would_take_f32_for_bf16_without_its_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(openvino, "_CPUINFO", tmp_path / "cpuinfo")
    assert openvino.no_bf16() == "this CPU has no instructions for bfloat16"
    (tmp_path / "cpuinfo").write_text("flags : fpu avx512_bf16 sse\n")
    assert openvino.no_bf16() is None


def request(tokens: torch.Tensor, q_len: int = 1) -> DenseRequest:
    return DenseRequest(0, 0, q_len, tokens, tokens)


def test_tokens_lie_in_the_blocks_of_their_request() -> None:
    first, second = torch.arange(40.0).view(-1, 1, 1).expand(-1, 2, 8), -torch.ones(3, 2, 8)
    blocks = Blocks.of([request(first), request(second)])
    assert [ids.tolist() for ids in blocks.ids] == [[3, 2], [1]]
    filled = blocks.filled([first, second])
    assert filled[2, 1, :9, 0].nan_to_num(-7).tolist() == [32, 33, 34, 35, 36, 37, 38, 39, -7]
    assert filled[0].isnan().all()
    assert torch.equal(blocks.tokens(filled, 0, 40), first)


@pytest.mark.parametrize(("codec", "shape"), [(BY_TOKEN, (2, 3, 32, 24)), (BY_CHANNEL, (2, 3, 40, 16))])
def test_codes_are_near_the_numbers(codec: Codec, shape: tuple[int, ...]) -> None:
    blocks = torch.randn(2, 3, 32, 16, generator=torch.Generator().manual_seed(1))
    blocks[1, :, 5:] = torch.nan
    blocks[0, 0, :, 3] = 2.5
    blocks[0, 0, 7] = 2.5
    encoded = codec.encode(blocks)
    assert (encoded.dtype, encoded.shape) == (torch.uint8, shape)
    decoded = codec.decode(encoded)
    there = ~blocks.isnan()
    spread = (
        blocks.nan_to_num().amax(codec.axis, keepdim=True) - blocks.nan_to_num().amin(codec.axis, keepdim=True)
    ) / 255
    assert ((decoded - blocks).abs() <= 0.5001 * spread + 1e-6)[there].all()
    assert torch.equal(codec.held(encoded, blocks)[there], decoded[there])


def test_a_wrong_code_is_not_taken_for_the_truth() -> None:
    """Nor one that was never written."""
    blocks = torch.linspace(-1, 1, 2 * 32 * 8).view(1, 2, 32, 8)
    encoded = BY_TOKEN.encode(blocks)
    encoded[0, 1, 4] = BY_TOKEN.encode(blocks + 3)[0, 1, 4]
    encoded[0, 0, 2, :8] = 0xFF
    held = BY_TOKEN.held(encoded, blocks)
    assert (held - blocks).abs().amax() < 1e-3


@needs_library
def test_a_u8_cache_is_judged_by_its_decoded_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers differ from the request's by more than attention in f32 may."""
    case = Case(backend="openvino:paged_u8", geometry=geometry(""), steps=STEPS[:1])
    assert run(case).observations == ()
    monkeypatch.setattr(HeldTokens, "_output", FunctionSession._output)
    (observation,) = run(case).observations
    assert observation.kind is Kind.OUTPUT_MISMATCH


def with_a_block_beyond(**arguments: Any) -> dict[str, Any]:
    arranged = arrange(precision=F32, **arguments)
    arranged["block_indices"] = arranged["block_indices"] + 1
    return arranged


BEYOND = dataclasses.replace(PAGED, label="openvino:beyond", arrange=with_a_block_beyond)


# Processes are needed: the access kills the one that makes it.
@needs_library
@pytest.mark.slow
def test_an_access_past_the_blocks_faults(runner: Runner) -> None:
    case = Case(backend=f"{Path(__file__)}:BEYOND", geometry=geometry(""), steps=(step(Mode.DECODE, (1, 9)),))
    (fault,) = runner.verdict(case).observations
    assert (fault.kind, fault.place) == (Kind.ILLEGAL_ACCESS, "key_blocks")
