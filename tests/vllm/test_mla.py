"""Latent attention in releases of vLLM: right ones pass, and mistakes that are planted in a copy of one are found."""

from collections.abc import Callable
from pathlib import Path

import engine_cases
import pytest
from small_cases import SERVED_LATENTS

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case, Mode, Pages, Request, Step, TableTail

pytestmark = pytest.mark.vllm

READ = ("0.29.0", "0.31.0", "0.32.0", "0.33.0")

PLANTED_IN = "0.32.0"

BASE_2 = "vllm==0.26.0"
"""Its prefills on trtllm-gen (v1/attention/backends/mla/prefill/trtllm_ragged.py:185); 0.29.0 converts the LSE."""

CHUNKS = Step(
    mode=Mode.EXTEND,
    requests=(Request(0, 5, 237), Request(1, 20, 20), Request(3, 7, 150), Request(2, 1, 9)),
    padded_tokens=40,
)
"""A prefill of 0 and 3 reads their prefixes in chunks of 64 tokens or fewer; 1 has no prefix, and 2 decodes."""

STEPS = {
    **engine_cases.STEPS,
    "prefill": (Step(mode=Mode.EXTEND, requests=(Request(0, 5, 5), Request(1, 20, 20)), padded_tokens=28),),
    "chunks": (CHUNKS,),
}
KINDS = ("flashinfer_mla", "flashinfer_mla_packed")


def case(release: str, *steps: Step, kind: str = "flashinfer_mla") -> Case:
    return Case(
        backend=f"{release}:{kind}",
        geometry=SERVED_LATENTS,
        steps=steps,
        pages=Pages(tail=TableTail.STALE),
        chunk_capacity=64,
    )


@pytest.mark.parametrize("version", READ)
def test_a_release_passes(version: str, passes: Callable[..., Verdict]) -> None:
    for steps in STEPS.values():
        for kind in KINDS:
            passes(case(f"vllm=={version}", *steps, kind=kind))


def test_an_lse_to_base_2_that_is_merged_as_one_to_base_e_is_found_in_a_release_that_did_so(runner: Runner) -> None:
    failures = runner.verdict(case(BASE_2, CHUNKS, kind="flashinfer_mla_packed")).failures
    assert {each.kind for each in failures} == {Kind.OUTPUT_MISMATCH}
    assert not runner.verdict(case(BASE_2, CHUNKS)).failures


LAYER, BACKEND = (
    Path("vllm", "model_executor", "layers", "attention", "mla_attention.py"),
    Path("vllm", "v1", "attention", "backends", "mla", "flashinfer_mla.py"),
)

MERGED = """\
                prefix_lse={}_lse,
                suffix_output=suffix_output,
                suffix_lse={}_lse,
"""

PLANTED = {
    "offsets of a chunk's keys that are one too low": (
        LAYER,
        "cu_seq_lens_flat.extend(itertools.accumulate(plan.seq_lens, initial=0))",
        "cu_seq_lens_flat.extend(max(0, end - 1) for end in itertools.accumulate(plan.seq_lens, initial=0))",
        STEPS["chunks"],
    ),
    "a merge that swaps the LSE of both parts": (
        LAYER,
        MERGED.format("context", "suffix"),
        MERGED.format("suffix", "context"),
        STEPS["chunks"],
    ),
    "a decode that knows one key too few": (
        BACKEND,
        "            seq_lens=seq_lens_device,\n",
        "            seq_lens=seq_lens_device - 1,\n",
        STEPS["decode"],
    ),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, runner: Runner, plant: Callable[..., str]) -> None:
    file, right, wrong, steps = PLANTED[mistake]
    verdict = runner.verdict(case(plant(PLANTED_IN, file, right, wrong), *steps))
    assert Kind.OUTPUT_MISMATCH in {each.kind for each in verdict.failures}
