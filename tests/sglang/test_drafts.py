"""A draft model's decodes on a release: right ones pass, and mistakes of the release or planted ones are found."""

import shutil
from pathlib import Path

import pytest
from engine_cases import GEOMETRY, draft, verify
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference.case import Case, KvView, Pages, Step, TableTail, Views
from attnfuzz.reference.geometry import Geometry, Latent

pytestmark = pytest.mark.sglang

RELEASE = "sglang==0.5.23"

LATENTS = replace(
    GEOMETRY, kv_heads=1, head_dim_qk=40, head_dim_vo=32, page_size=32, latent=Latent(rank=32, rope=8, nope=16, vo=16)
)
VERIFY = verify((0, 4, 40), (1, 4, 17))
DRAFTS = draft((0, 2, 42), (1, 2, 16))


def case(release: str, *steps: Step, geometry: Geometry = GEOMETRY) -> Case:
    kind = "trtllm_mla" if geometry.latent else "trtllm_mha"
    return Case(
        backend=f"{release}:{kind}",
        geometry=geometry,
        steps=steps,
        pages=Pages(tail=TableTail.STALE),
        views=Views(kv=KvView.TOKEN_MAJOR),
    )


@pytest.mark.parametrize("steps", [(DRAFTS,), (VERIFY, DRAFTS)])
def test_decodes_see_the_drafts_before_them(steps: tuple[Step, ...], runner: Runner) -> None:
    verdict = runner.verdict(case(RELEASE, *steps))
    assert verdict.unsupported is None
    assert verdict.failures == ()
    assert verdict.rows


def test_decodes_over_latents_do_not_see_their_own_token(runner: Runner) -> None:
    failures = runner.verdict(case(RELEASE, DRAFTS, geometry=LATENTS)).failures
    assert {each.kind for each in failures} == {Kind.OUTPUT_MISMATCH}


def test_decodes_are_padded_after_they_were_planned(runner: Runner) -> None:
    failures = runner.verdict(case(RELEASE, replace(DRAFTS, padded_tokens=8))).failures
    assert Kind.ILLEGAL_ACCESS in {each.kind for each in failures}


def test_a_length_that_is_not_advanced_is_found(runner: Runner, tmp_path: Path) -> None:
    root = release_of(SGLANG, RELEASE).root
    tree = Path(shutil.copytree(root, tmp_path / "tree", ignore=shutil.ignore_patterns("__pycache__")))
    file = tree / "sglang/srt/layers/attention/trtllm_mha_backend.py"
    text, right = file.read_text(), "seqlens_in_batch + (self.speculative_step_id + 1)"
    assert text.count(right) == 1
    file.write_text(text.replace(right, "seqlens_in_batch + 1"))
    failures = runner.verdict(case(f"sglang@{tree}", DRAFTS)).failures
    assert {each.kind for each in failures} == {Kind.OUTPUT_MISMATCH}
