"""onnxruntime's operators as backends: what they are called with, and that they pass where they should."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from library_cases import STEPS
from repetition import examples
from small_cases import HEADS, drawn, lighter, passed, run, step

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.libraries.onnx_calls import Node, node_of, run_calls
from attnfuzz.kernels.libraries.onnxruntime import ONNXRUNTIME_BACKENDS, arrange_batch, gqa_groups
from attnfuzz.kernels.libraries.requests import DenseRequest
from attnfuzz.reference.case import Case, Mode, Scales
from attnfuzz.reference.edges import Edge
from attnfuzz.reference.geometry import Geometry, KvLayout

NAMES = [backend.name for backend in ONNXRUNTIME_BACKENDS]
GEOMETRY = msgspec.structs.replace(HEADS, kv_layout=KvLayout.NHD)

needs_library = pytest.mark.skipif(
    any(backend.missing() is not None for backend in ONNXRUNTIME_BACKENDS), reason="needs onnxruntime and onnx"
)


def geometry(window_left: int = -1, *, sinks: bool = False, soft_cap: float = 0.0) -> Geometry:
    return msgspec.structs.replace(GEOMETRY, window_left=window_left, sinks=sinks, soft_cap=soft_cap)


@needs_library
@pytest.mark.parametrize("window_left", [-1, 0, 5])
@pytest.mark.parametrize("name", NAMES)
def test_batches_of_all_kinds_pass(name: str, window_left: int) -> None:
    sinks = "gqa" in name
    case = Case(backend=name, geometry=geometry(window_left, sinks=sinks, soft_cap=5.0), steps=STEPS)
    assert passed(case).rows


@needs_library
def test_grouped_attention_takes_a_scale_of_0_for_none() -> None:
    # See docs/findings/scale-of-zero.md.
    def case(name: str, softmax: float) -> Case:
        return Case(backend=name, geometry=geometry(), steps=STEPS[:1], scales=Scales(softmax=softmax))

    for name in ("onnxruntime:gqa", "onnxruntime:gqa_any_scale"):
        assert not run(case(name, -0.6)).observations
    kinds = {each.kind for each in run(case("onnxruntime:gqa_any_scale", 0.0)).observations}
    assert kinds == {Kind.OUTPUT_MISMATCH}
    assert resolve("onnxruntime:gqa").capability.why_not(case("onnxruntime:gqa", 0.0)) == Edge.SOFTMAX_ZERO


@needs_library
@pytest.mark.parametrize("softmax", [0.0, -0.6])
@pytest.mark.parametrize("name", [name for name in NAMES if "attention" in name])
def test_attention_refuses_scales_of_0_and_below(name: str, softmax: float) -> None:
    verdict = run(Case(backend=name, geometry=geometry(), steps=STEPS[:1], scales=Scales(softmax=softmax)))
    assert not verdict.observations
    assert "scale must be greater than 0 if specified" in (verdict.unsupported or "")


@needs_library
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("any_scale")])
@examples(20, 100)
def test_drawn_cases_pass(name: str, count: int) -> None:
    for case in lighter(drawn(name, count)):
        assert run(case).observations == ()


def requests(*lengths: tuple[int, int]) -> list[DenseRequest]:
    return [
        DenseRequest(0, 0, q_len, torch.empty(kv_len, 1, 8), torch.empty(kv_len, 1, 8)) for q_len, kv_len in lengths
    ]


def test_decodes_are_one_call_and_so_are_prompts() -> None:
    """The operator refuses a batch of requests with a past and several queries."""
    groups = gqa_groups(requests((1, 1), (3, 3), (2, 9), (1, 5), (4, 4), (3, 9)))
    lengths = [[(each.q_len, each.kv_len) for each in group] for group in groups]
    assert lengths == [[(1, 1), (1, 5)], [(3, 3), (4, 4)], [(2, 9)], [(3, 9)]]


def test_inputs_without_a_tensor_are_left_out_up_to_the_last_one() -> None:
    made = node_of("Op", {"a": torch.ones(1), "c": torch.ones(1).int()}, ["a", "b", "c", "d"], ("o",), {"n": 1})
    assert made == Node("Op", "", 23, (("a", torch.float32), None, ("c", torch.int32)), ("o",), (("n", 1),))


@pytest.mark.parametrize("nonpad", [True, False])
def test_keys_of_a_batch_are_padded_and_the_padding_is_excluded(*, nonpad: bool) -> None:
    cache = torch.arange(2.0).view(2, 1, 1, 1).expand(2, 4, 1, 8)
    arranged = arrange_batch(
        query=torch.ones(2, 2, 8),
        scale=1.0,
        window_left=-1,
        soft_cap=0.0,
        nonpad=nonpad,
        k_cache=cache,
        v_cache=cache,
        block_tables=torch.tensor([[0], [1]]),
        seq_lens=torch.tensor([4, 2]),
        cum_seq_lens_q=torch.tensor([0, 1, 2]),
    )
    (call,) = arranged["calls"]
    assert call.rows == (slice(0, 1), slice(1, 2))
    assert arranged["key.0"].shape == ((2, 1, 4, 8) if nonpad else (2, 4, 8))
    if nonpad:
        assert arranged["nonpad_kv_seqlen.0"].tolist() == [4, 2]
    else:
        assert arranged["attn_mask.0"][1, 0].tolist() == [[True, True, False, False]]


class Longer:
    """A cache described as longer than it is."""

    def __init__(self, cache: torch.Tensor) -> None:
        self.dtype, self.data_ptr = cache.dtype, cache.data_ptr
        batch, heads, length, dim = cache.shape
        self.shape = (batch, heads, length + 64, dim)


def read_past_the_cache(*, out: torch.Tensor, **arranged: Any) -> None:
    run_calls(out=out, **arranged | {name: Longer(arranged[name]) for name in ("past_key.0", "past_value.0")})


BEYOND = dataclasses.replace(ONNXRUNTIME_BACKENDS[1], label="onnxruntime:beyond", function=read_past_the_cache)


# Processes are needed: the access kills the one that makes it.
@needs_library
@pytest.mark.slow
def test_a_read_past_the_cache_faults(runner: Runner) -> None:
    case = Case(backend=f"{Path(__file__)}:BEYOND", geometry=GEOMETRY, steps=(step(Mode.DECODE, (1, 9)),))
    verdict = runner.verdict(case)
    assert [(each.kind, each.place) for each in verdict.observations] == [(Kind.ILLEGAL_ACCESS, "past_key.0")]
