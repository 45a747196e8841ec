"""A draft model's decodes on releases: right ones pass, and mistakes that are planted in a copy of one are found."""

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_cases import GEOMETRY, draft, extend, verify
from msgspec.structs import replace
from small_cases import SERVED_LATENTS

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case, PageOrder, Pages, Request, Step, TableTail
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

pytestmark = pytest.mark.vllm

READ = ("0.22.1", "0.26.0", "0.29.0", "0.33.0")

PLANTED_IN = "0.33.0"

VERIFY = verify((0, 4, 40), (1, 4, 17))
DRAFTS = draft((0, 2, 42), (1, 2, 3))
PADDED = replace(DRAFTS, requests=(Request(1, 2, 33), Request(0, 2, 17)), padded_tokens=10)
REJECTED = replace(DRAFTS, requests=(Request(1, 2, 16), Request(0, 2, 41)))
"""Of the drafts of VERIFY, the first request accepts none, and the second two of three."""

AFTER_ONE = replace(DRAFTS, requests=(Request(0, 1, 2),), padded_tokens=1, tokens_per_request=1)
PROMPT = extend((0, 8, 9))
"""A prompt that begins where the target's tokens before AFTER_ONE end: another request's."""

STEPS = {
    "drafts": (DRAFTS,),
    "padded rows": (PADDED,),
    "after rejected drafts": (VERIFY, REJECTED),
    "before a prompt": (AFTER_ONE, PROMPT),
}

TOKENS_FIRST = replace(GEOMETRY, kv_layout=KvLayout.NHD)
KINDS = {
    "flashinfer_sm90": TOKENS_FIRST,
    "flashinfer_sm80": TOKENS_FIRST,
    "flash_attn": TOKENS_FIRST,
    "triton": replace(TOKENS_FIRST, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16),
    "triton_fp8": replace(TOKENS_FIRST, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT8_E4M3),
    "flashinfer_mla": SERVED_LATENTS,
    "flashinfer_mla_packed": SERVED_LATENTS,
}


def case(release: str, *steps: Step, kind: str = "flashinfer") -> Case:
    geometry = KINDS.get(kind, GEOMETRY)
    return Case(backend=f"{release}:{kind}", geometry=geometry, steps=steps, pages=Pages(tail=TableTail.STALE))


@pytest.mark.parametrize("version", READ)
def test_a_release_passes(version: str, passes: Callable[..., Verdict]) -> None:
    for steps in STEPS.values():
        verdict = passes(case(f"vllm=={version}", *steps))
        assert verdict.rows


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_passes(kind: str, passes: Callable[..., Verdict]) -> None:
    for steps in STEPS.values():
        passes(case(f"vllm=={READ[-1]}", *steps, kind=kind))


def test_a_request_attends_to_pages_that_other_ones_share_and_do_not_draft_on(runner: Runner) -> None:
    first = replace(VERIFY, requests=(Request(0, 4, 40),), padded_tokens=4)
    before = replace(first, requests=(Request(0, 4, 20),))
    drafts = replace(DRAFTS, requests=(Request(0, 2, 20), Request(1, 2, 42)))
    shared = replace(case(f"vllm=={READ[-1]}", first, before, drafts), pages=Pages(order=PageOrder.SHARED_PREFIX))
    assert runner.verdict(shared).observations == ()


def test_dummy_drafts_go_to_the_slots_of_the_last_ones(runner: Runner) -> None:
    # The draft decodes that are run again without their writes have their requests in another order.
    many = replace(DRAFTS, requests=tuple(Request(slot, 2, 3 + slot % 5) for slot in range(9)), padded_tokens=18)
    others = replace(many, requests=tuple(Request(slot, 2, 3 + slot % 5 + slot % 2) for slot in range(8, 0, -1)))
    for steps in ((DRAFTS, VERIFY), (many, others)):
        verdict = runner.verdict(case(f"vllm=={READ[-1]}", *steps))
        assert {(each.kind, each.step) for each in verdict.observations} == {(Kind.STRAY_WRITE, 1)}


_PROPOSER = Path("vllm/v1/spec_decode/llm_base_proposer.py")
_KERNELS = Path("vllm/v1/spec_decode/utils.py")

PLANTED = {
    "a length that is not advanced": (
        _KERNELS,
        "    tl.store(seq_lens_ptr + req_idx, new_seq_len)",
        "    pass",
        (REJECTED,),
        {Kind.OUTPUT_MISMATCH},
    ),
    "the slots of the forward before": (
        _KERNELS,
        "slot_id = block_id * block_size + (clamped_position % block_size)",
        "slot_id = block_id * block_size + (position % block_size)",
        (DRAFTS,),
        {Kind.OUTPUT_MISMATCH, Kind.NOT_FINITE, Kind.WRITE_MISMATCH, Kind.STRAY_WRITE, Kind.UNWRITTEN},
    ),
    "rejected drafts that count as keys": (
        _PROPOSER,
        "            common_attn_metadata.seq_lens -= num_rejected_tokens_gpu",
        "            pass",
        (VERIFY, REJECTED),
        {Kind.OUTPUT_MISMATCH, Kind.NOT_FINITE},
    ),
}
"""Mistakes by their names: the file, the line and what replaces it, the steps that show it, and the kinds seen."""


@pytest.mark.parametrize("kind", ["flashinfer", "flashinfer_mla"])
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, kind: str, runner: Runner, plant: Callable[..., str]) -> None:
    place, right, wrong, steps, kinds = PLANTED[mistake]
    verdict = runner.verdict(case(plant(PLANTED_IN, place, right, wrong), *steps, kind=kind))
    assert verdict.observations
    assert {each.kind for each in verdict.observations} <= kinds
