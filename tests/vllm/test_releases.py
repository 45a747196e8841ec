"""Cases on releases of vLLM: right ones pass, and mistakes that are planted in a copy of one are found."""

import re
from collections.abc import Callable
from pathlib import Path

import engine_cases
import pytest
from engine_cases import GEOMETRY
from msgspec.structs import replace
from packaging.version import Version

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.reference.case import Case, Launch, Mode, Pages, Request, Scales, Step, TableTail
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

pytestmark = pytest.mark.vllm

READ = ("0.22.1", "0.26.0", "0.29.0", "0.33.0")
"""The versions that the tests run; all take long to fetch."""

PLANTED_IN = "0.32.0"

DUMMY_SLOTS = "0.19.0"
"""A release in which a dummy batch writes to the slots of an earlier step (vLLM PR #39444)."""

STEPS = {
    **engine_cases.STEPS,
    "mixed": (
        Step(
            mode=Mode.EXTEND,
            requests=(Request(0, 5, 37), Request(1, 20, 20), Request(2, 1, 9)),
            padded_tokens=28,
        ),
    ),
}


KINDS = {
    "flashinfer_sm90": GEOMETRY,
    "flashinfer_sm80": replace(GEOMETRY, kv_layout=KvLayout.NHD),
    "flash_attn": replace(GEOMETRY, kv_layout=KvLayout.NHD),
    "triton": replace(GEOMETRY, kv_layout=KvLayout.NHD, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16),
    "triton_fp8": replace(GEOMETRY, kv_layout=KvLayout.NHD, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT8_E4M3),
}
"""The other kinds of backends, each with its geometry."""


def case(release: str, *steps: Step, window: int = -1, sinks: bool = False, kind: str = "flashinfer") -> Case:
    geometry = replace(KINDS.get(kind, GEOMETRY), window_left=window, sinks=sinks)
    tails = Pages(tail=TableTail.STALE)
    return Case(backend=f"{release}:{kind}", geometry=geometry, steps=steps, pages=tails)


@pytest.mark.parametrize("version", READ)
def test_a_release_passes(version: str, runner: Runner) -> None:
    for steps in STEPS.values():
        for more in ({}, {"window": 7, "sinks": True}):
            verdict = runner.verdict(case(f"vllm=={version}", *steps, **more))  # type: ignore[arg-type]
            assert verdict.unsupported is None
            assert verdict.failures == ()


@pytest.mark.parametrize("version", READ)
def test_a_release_passes_with_an_fp8_cache(version: str, passes: Callable[..., Verdict]) -> None:
    for steps in STEPS.values():
        plain = case(f"vllm=={version}", *steps)
        geometry = replace(plain.geometry, kv_dtype=DType.FLOAT8_E4M3)
        # Queries are quantised: the other servers have the bug of PR 48016.
        passes(replace(plain, geometry=geometry, scales=Scales(k=0.37, v=1.7)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", READ)
def test_another_kind_of_a_release_passes(version: str, kind: str, runner: Runner) -> None:
    ran = set()
    for name, steps in STEPS.items():
        verdict = runner.verdict(case(f"vllm=={version}", *steps, kind=kind))
        assert verdict.failures == ()
        if verdict.unsupported is None:
            ran.add(name)
    # Not all have graphs of verifies.
    assert ran >= {*STEPS} - {"graph"}


def test_a_dummy_batch_that_writes_is_found_in_the_release_that_had_it(runner: Runner) -> None:
    failures = runner.verdict(case(f"vllm=={DUMMY_SLOTS}", *STEPS["decode"])).failures
    assert {each.kind for each in failures} == {Kind.STRAY_WRITE}


BACKEND, TRITON, FLASH_ATTN, BLOCK_TABLE, RUNNER = (
    Path("vllm", "v1", *parts)
    for parts in (
        ("attention", "backends", "flashinfer.py"),
        ("attention", "backends", "triton_attn.py"),
        ("attention", "backends", "flash_attn.py"),
        ("worker", "block_table.py"),
        ("worker", "gpu_model_runner.py"),
    )
)

PLANTED = {
    "a length off by one in verifies": (
        BACKEND,
        "                seq_lens_decode = seq_lens[:num_decodes]\n",
        "                seq_lens_decode = seq_lens[:num_decodes] - int(num_decode_tokens > num_decodes)\n",
        STEPS["verify"],
        Kind.OUTPUT_MISMATCH,
    ),
    "a page table that is too narrow": (
        BACKEND,
        "prefill_block_tables = block_table_tensor[prefill_start:]\n",
        "prefill_block_tables = block_table_tensor[prefill_start:, : max_seq_len // page_size].clone()\n",
        STEPS["mixed"],
        Kind.CONTRACT_BROKEN,
    ),
    "requests of a graph without a page table of their own": (
        BACKEND,
        "                    block_tables=block_table_tensor[:num_decodes],\n",
        "                    block_tables=block_table_tensor[:num_decodes].clone(),\n",
        STEPS["graph"],
        Kind.OUTPUT_MISMATCH,
    ),
    "padded rows that keep their slots": (
        RUNNER,
        "            slot_mapping[num_tokens_unpadded:num_tokens_padded].fill_(-1)\n",
        "            slot_mapping[num_tokens_unpadded:num_tokens_padded].copy_(slot_mapping[:1])\n",
        STEPS["graph"],
        Kind.WRITE_MISMATCH,
    ),
    "positions that are off by one": (
        RUNNER,
        "            self.num_computed_tokens[req_indices_gpu].to(torch.int64)\n            + self",
        "            self.num_computed_tokens[req_indices_gpu].to(torch.int64)\n            - 1 + self",
        STEPS["verify"],
        Kind.STRAY_WRITE,
    ),
}


DECODE_CAPTURE, DECODE_REPLAY = (
    Step(mode=Mode.DECODE, requests=requests, padded_tokens=3, tokens_per_request=1, launch=launch)
    for launch, requests in ((Launch.CAPTURE, ()), (Launch.REPLAY, STEPS["decode"][0].requests))
)

PLANTED_ELSEWHERE = {
    "a graph of decodes without a new plan": (
        "flashinfer_sm80",
        BACKEND,
        '    assert self.is_cuda_graph_enabled, "Should be cudagraph only here"\n',
        "    return\n",
        (DECODE_CAPTURE, DECODE_REPLAY),
        Kind.OUTPUT_MISMATCH,
    ),
    "pages of the request before": (
        "flashinfer_sm80",
        BACKEND,
        "    row_ptr = block_table + req_idx * block_table_stride\n",
        "    row_ptr = block_table\n",
        STEPS["mixed"],
        Kind.OUTPUT_MISMATCH,
    ),
    "a draft mask without the draft itself": (
        "flashinfer_sm90",
        BACKEND,
        "bool_mask = kv_idx <= q_idx if causal",
        "bool_mask = kv_idx < q_idx if causal",
        STEPS["verify"],
        Kind.OUTPUT_MISMATCH,
    ),
    "scratch of a single row": (
        "triton",
        TRITON,
        "        max_num_tokens_3d = self.seq_threshold_3D\n",
        "        max_num_tokens_3d = 1\n",
        STEPS["decode"],
        Kind.ILLEGAL_ACCESS,
    ),
    "a schedule that is not the batch's": (
        "flash_attn",
        FLASH_ATTN,
        "            self.scheduler_metadata[:n] = scheduler_metadata\n",
        "            pass\n",
        (DECODE_CAPTURE, DECODE_REPLAY),
        Kind.UNWRITTEN,
    ),
}
"""Mistakes in other kinds of backends."""


@pytest.mark.parametrize("mistake", PLANTED_ELSEWHERE)
def test_a_mistake_planted_in_another_kind_is_found(mistake: str, runner: Runner, plant: Callable[..., str]) -> None:
    backend, place, right, wrong, steps, kind = PLANTED_ELSEWHERE[mistake]
    failures = runner.verdict(case(plant(PLANTED_IN, place, right, wrong), *steps, kind=backend)).failures
    assert kind in {each.kind for each in failures}


WITH_THEIR_LINE = (
    "a length off by one in verifies",
    "a page table that is too narrow",
    "padded rows that keep their slots",
)
"""Mistakes whose line makes metadata of a call, or writes to it last."""


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, runner: Runner, plant: Callable[..., str]) -> None:
    place, right, wrong, steps, kind = PLANTED[mistake]
    tree = plant(PLANTED_IN, place, right, wrong)
    failures = runner.verdict(case(tree, *steps)).failures
    assert kind in {each.kind for each in failures}
    if mistake in WITH_THEIR_LINE:
        line = (Path(tree.removeprefix("vllm@")) / place).read_text().partition(wrong)[0].count("\n") + 1
        file = place.relative_to("vllm").as_posix()
        # A line alone is one of the file that makes the call.
        assert all(re.search(rf"({re.escape(file)}:|line ){line}\b", each.message) for each in failures)


def test_the_versions_that_the_tests_run_are_pinned() -> None:
    assert {*map(Version, (*READ, PLANTED_IN))} <= {*map(Version, Wheels(VLLM).pinned())}
