"""Variations of attnfuzz's own backends: kernels and arguments of the user's, and the examples of them."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from repetition import examples
from small_cases import HEADS, drawn, lighter, run, step

from attnfuzz import Launching, Variation
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case import Case, Launch, Mode, Scales
from attnfuzz.reference.contract import PAGE_IDS
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import Origin

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "varied_backend.py"
DECODE = "trtllm_batch_decode_with_kv_cache"
CAPTURE = step(Mode.DECODE, rows=2, launch=Launch.CAPTURE)
REPLAY = step(Mode.DECODE, (1, 9), rows=2, launch=Launch.REPLAY)
HERE = f"{__file__}:"


def refuse(**_: Any) -> None:
    raise RuntimeError("my kernel ran")


def doubled(launching: Launching) -> dict[str, Any]:
    """The scale of a decode is doubled, in eager launches alone."""
    eager = launching.step.launch is Launch.EAGER
    if launching.op == DECODE and launching.step.mode is Mode.DECODE and eager:
        return {"bmm1_scale": 2 * launching.arguments["bmm1_scale"]}
    return {}


MINE = Variation("trtllm_mha", kernels={DECODE: refuse})
DOUBLED = Variation("trtllm_mha", change=doubled)
RENEWED = Variation("trtllm_mha", change=lambda launching: {"seq_lens": launching.arguments["seq_lens"].clone()})
PLAIN = Variation("trtllm_mha")


def decodes(backend: str, *steps: Any, **fields: Any) -> Case:
    return Case(backend=backend, geometry=HEADS, steps=steps or (step(Mode.DECODE, (1, 9)),), **fields)


def test_a_kernel_of_the_users_runs_in_place_of_an_op() -> None:
    (failure,) = run(decodes(f"{HERE}MINE")).failures
    assert (failure.kind, failure.kernel, failure.mode) == (Kind.RAISED, DECODE, "decode")
    assert "my kernel ran" in failure.message
    assert not run(decodes(f"{HERE}MINE", step(Mode.EXTEND, (1, 9)))).failures


def test_a_replay_launches_it_too() -> None:
    (failure,) = run(decodes(f"{HERE}MINE", CAPTURE, REPLAY)).failures
    assert (failure.kind, failure.step) == (Kind.RAISED, 1)


def test_changed_arguments_know_step_and_mode() -> None:
    kinds = {failure.kind for failure in run(decodes(f"{HERE}DOUBLED")).failures}
    assert kinds == {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH}
    assert not run(decodes(f"{HERE}DOUBLED", step(Mode.TARGET_VERIFY, (2, 9), stride=2))).failures
    assert not run(decodes(f"{HERE}DOUBLED", CAPTURE, REPLAY)).failures
    assert not run(decodes(f"{HERE}PLAIN", scales=Scales(softmax=1.7))).observations


def test_tensors_that_a_change_makes_are_placed_in_guarded_memory() -> None:
    # The launcher refuses tensors that are not.
    assert not run(decodes(f"{HERE}RENEWED")).observations


def test_promises_about_bits_and_rounding_are_not_those_of_other_kernels() -> None:
    base = resolve("trtllm_mha")
    assert MINE.contract == replace(base.contract, bitwise=PAGE_IDS)
    assert MINE.noise(DType.BFLOAT16).origin is Origin.UNKNOWN
    assert (DOUBLED.contract, DOUBLED.capability) == (base.contract, base.capability)
    assert DOUBLED.noise(DType.BFLOAT16) == base.noise(DType.BFLOAT16)


@pytest.mark.parametrize(
    ("base", "kernels", "words"),
    [
        ("my_backend", {}, "'my_backend' is not a backend of attnfuzz: give one of trtllm_mha"),
        (
            "torch_sdpa",
            {DECODE: refuse},
            "torch_sdpa launches no trtllm_batch_decode_with_kv_cache: its ops are scaled_",
        ),
    ],
)
def test_a_name_that_is_none_is_refused(base: str, kernels: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Variation(base, kernels=kernels)


@pytest.mark.slow
@examples(25, 100)
def test_the_example_with_a_kernel_passes_drawn_cases(count: int) -> None:
    for case in lighter(drawn(f"{EXAMPLE}:MY_DECODE", count)):
        assert run(case).observations == ()


@pytest.mark.slow
def test_the_example_with_arguments_fails_as_its_revision_does(runner: Runner) -> None:
    """A worker dies of it."""
    case = decodes(f"{EXAMPLE}:PADDED_BATCH", step(Mode.DRAFT_EXTEND_V2, (1, 9), stride=1, rows=2))
    (failure,) = runner.verdict(case).failures
    (known,) = runner.verdict(case, "trtllm_mha@21649-before").failures
    assert (failure.kind, failure.place) == (Kind.ILLEGAL_ACCESS, "cum_seq_lens_q")
    assert (failure.kind, failure.place) == (known.kind, known.place)
