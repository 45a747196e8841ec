"""Releases of SGLang on a Hopper GPU: real XQA and fmha_v2, compiled Triton and JIT kernels, and CUDA's graphs."""

import pytest
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import on_device, resolve
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference.case import Case, KvView, Launch, Mode, PaddedSlot, Request, Step, Views
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import Geometry, Latent

pytestmark = pytest.mark.gpu

NEWEST = "0.5.23"
DRAFTS = 4
GEOMETRIES = {
    "trtllm_mha": Geometry(q_heads=2, kv_heads=1, head_dim_qk=64, head_dim_vo=64, page_size=16),
    "trtllm_mla": Geometry(
        q_heads=8,
        kv_heads=1,
        head_dim_qk=576,
        head_dim_vo=512,
        page_size=32,
        latent=Latent(rank=512, rope=64, nope=128, vo=128),
    ),
}
BY_GRAPH = (Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND_V2)


def on_hopper(release: str) -> str:
    """The name of a release's backend on this GPU; skips where it can't run, or would have to be fetched."""
    named = Named.parse(SGLANG, release)
    found = str(Named(SGLANG, named.release, named.kind, gpu=True))
    reason = resolve(found).missing()
    if reason is not None:
        pytest.skip(reason)
    if named.version not in Wheels(SGLANG).cached():
        pytest.skip(f"SGLang {named.version} is not in the cache: attnfuzz build --backend {found}")
    return found


def case_on(kind: str, *steps: Step) -> Case:
    backend = on_hopper(f"sglang=={NEWEST}:{kind}")
    return Case(backend=backend, geometry=GEOMETRIES[kind], steps=steps, views=Views(kv=KvView.TOKEN_MAJOR))


def step_of(mode: Mode, *kv_lens: int, padded: int = 0, launch: Launch = Launch.EAGER) -> Step:
    stride = 1 if mode is Mode.DECODE else DRAFTS
    requests = tuple(Request(slot=slot, q_len=stride, kv_len=kv_len) for slot, kv_len in enumerate(kv_lens))
    tokens = stride * (len(kv_lens) + padded)
    return Step(mode=mode, requests=requests, padded_tokens=tokens, tokens_per_request=stride, launch=launch)


def passes(runner: Runner, case: Case) -> None:
    verdict = runner.verdict(case)
    assert verdict.unsupported is None
    assert not verdict.failures, render_failure(case, verdict)


@pytest.mark.parametrize("kind", SGLANG.kinds)
@pytest.mark.parametrize("mode", BY_GRAPH)
def test_modes_that_a_server_runs_eagerly_pass(kind: str, mode: Mode, runner: Runner) -> None:
    passes(runner, case_on(kind, step_of(mode, 5, 40, 17), step_of(mode, 9, 44, 21)))


@pytest.mark.parametrize("kind", SGLANG.kinds)
@pytest.mark.parametrize("mode", BY_GRAPH)
def test_a_graph_is_right_for_other_lengths_and_padding(kind: str, mode: Mode, runner: Runner) -> None:
    capture = step_of(mode, padded=3, launch=Launch.CAPTURE)
    first, second = step_of(mode, 5, 40, 17, launch=Launch.REPLAY), step_of(mode, 9, 70, padded=1, launch=Launch.REPLAY)
    passes(runner, case_on(kind, capture, first, second))


@pytest.mark.parametrize("kind", SGLANG.kinds)
def test_an_extend_without_a_prefix_is_right(kind: str, runner: Runner) -> None:
    requests = (Request(slot=0, q_len=21, kv_len=21), Request(slot=1, q_len=1, kv_len=1))
    passes(runner, case_on(kind, Step(mode=Mode.EXTEND, requests=requests, padded_tokens=22)))


def test_an_extend_over_a_prefix_is_right_on_fmha_v2(runner: Runner) -> None:
    requests = (Request(slot=0, q_len=5, kv_len=37), Request(slot=1, q_len=19, kv_len=20))
    passes(runner, case_on("trtllm_mha", Step(mode=Mode.EXTEND, requests=requests, padded_tokens=24)))


def test_draft_extends_that_are_planned_before_they_are_padded_fault_in_xqa(runner: Runner) -> None:
    """docs/findings/sglang-draft-extend-padding.md."""
    verdict = runner.verdict(case_on("trtllm_mha", step_of(Mode.DRAFT_EXTEND_V2, 4, padded=1)))
    assert [failure.kind for failure in verdict.failures] == [Kind.ILLEGAL_ACCESS]
    assert "query has 8 rows at q_len_per_req 4" in verdict.failures[0].message


@pytest.mark.parametrize("kind", SGLANG.gpu_kinds)
def test_tokens_stored_by_a_kernel_of_the_release_pass_with_padding_and_in_a_graph(kind: str, runner: Runner) -> None:
    backend = on_hopper(f"hopper:sglang=={NEWEST}:{kind}")
    (bucket, *_) = resolve(backend).capability.buckets
    eager, replay = step_of(Mode.DECODE, 5, 40, padded=1), step_of(Mode.DECODE, 6, 41, padded=1, launch=Launch.REPLAY)
    capture = step_of(Mode.DECODE, padded=3, launch=Launch.CAPTURE)
    steps, geometry = (eager, capture, replay), bucket.simplest
    passes(runner, Case(backend=backend, geometry=geometry, steps=steps, padded_slot=PaddedSlot.RESERVED))


@pytest.mark.parametrize("name", ["sglang-21649", "sglang-21987", "sglang-22688"])
def test_a_report_is_shown_by_its_release_on_the_gpu(name: str, runner: Runner) -> None:
    """On plain kernels: servers ran these releases on Blackwell alone."""
    bug = next(bug for bug in load_bugs() if bug.name == name)
    found = bug.release_case or bug.case
    assert isinstance(found, Case)
    backend = on_hopper(bug.release)
    views = replace(found.views, kv=resolve(backend).capability.kv_views[0])
    verdict = runner.verdict(replace(found, backend=backend, views=views))
    assert verdict.unsupported is None
    assert any(failure.kind in (*bug.kinds, Kind.ILLEGAL_ACCESS) for failure in verdict.failures)


def test_on_device_maps_a_release_to_its_name_on_a_gpu() -> None:
    # First, since it skips where the release can't run.
    expected = on_hopper(f"sglang=={NEWEST}:trtllm_mha")
    assert on_device(f"sglang=={NEWEST}:trtllm_mha", Device.CUDA) == expected
