"""A release of vLLM on a Hopper GPU: FlashInfer's own kernels, compiled Triton, and CUDA's graphs."""

import pytest
from small_cases import step

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.reference.case import Case, Launch, Mode, Step

pytestmark = pytest.mark.gpu

NEWEST = "0.33.0"


def case_on(kind: str, *steps: Step) -> Case:
    """A case of a kind's simplest geometry; skips where it can't run, or would have to be fetched."""
    backend = resolve(f"hopper:vllm=={NEWEST}:{kind}")
    reason = backend.missing()
    if reason is not None:
        pytest.skip(reason)
    if NEWEST not in map(str, Wheels(VLLM).cached()):
        pytest.skip(f"vLLM {NEWEST} is not in the cache: attnfuzz build --backend {backend.name}")
    (bucket, *_) = backend.capability.buckets
    return Case(backend=backend.name, geometry=bucket.simplest, steps=steps)


def passes(runner: Runner, case: Case) -> None:
    verdict = runner.verdict(case)
    assert verdict.unsupported is None
    assert not verdict.failures, render_failure(case, verdict)


@pytest.mark.parametrize("kind", VLLM.on_hopper)
@pytest.mark.parametrize(("mode", "stride"), [(Mode.DECODE, 1), (Mode.TARGET_VERIFY, 3)])
def test_a_graph_is_right_for_other_lengths_and_padding(kind: str, mode: Mode, stride: int, runner: Runner) -> None:
    capture = step(mode, stride=stride, rows=3, launch=Launch.CAPTURE)
    replays = [
        step(mode, *((stride, kv_len) for kv_len in kv_lens), stride=stride, rows=3, launch=Launch.REPLAY)
        for kv_lens in ((5, 40, 17), (9, 70))
    ]
    passes(runner, case_on(kind, capture, *replays))


@pytest.mark.parametrize("kind", VLLM.on_hopper)
def test_a_prefill_beside_a_decode_is_right(kind: str, runner: Runner) -> None:
    passes(runner, case_on(kind, step(Mode.CHUNKED_PREFILL, (21, 21), (5, 37), (1, 9))))
