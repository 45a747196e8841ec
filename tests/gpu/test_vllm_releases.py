"""A release of vLLM on a Hopper GPU: FlashInfer's own kernels, compiled Triton, and CUDA's graphs."""

from collections.abc import Iterator

import pytest

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.reference.case import Case, Launch, Mode, Request, Step

pytestmark = pytest.mark.gpu

NEWEST = "0.33.0"
DRAFTS = 3


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


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


def step_of(mode: Mode, *kv_lens: int, padded: int = 0, launch: Launch = Launch.EAGER) -> Step:
    stride = DRAFTS if mode is Mode.TARGET_VERIFY else 1
    requests = tuple(Request(slot=slot, q_len=stride, kv_len=kv_len) for slot, kv_len in enumerate(kv_lens))
    tokens = stride * (len(kv_lens) + padded)
    return Step(mode=mode, requests=requests, padded_tokens=tokens, tokens_per_request=stride, launch=launch)


def passes(runner: Runner, case: Case) -> None:
    verdict = runner.verdict(case)
    assert verdict.unsupported is None
    assert not verdict.failures, render_failure(case, verdict)


@pytest.mark.parametrize("kind", VLLM.on_hopper)
@pytest.mark.parametrize("mode", [Mode.DECODE, Mode.TARGET_VERIFY])
def test_a_graph_is_right_for_other_lengths_and_padding(kind: str, mode: Mode, runner: Runner) -> None:
    capture = step_of(mode, padded=3, launch=Launch.CAPTURE)
    first, second = step_of(mode, 5, 40, 17, launch=Launch.REPLAY), step_of(mode, 9, 70, padded=1, launch=Launch.REPLAY)
    passes(runner, case_on(kind, capture, first, second))


@pytest.mark.parametrize("kind", VLLM.on_hopper)
def test_a_prefill_beside_a_decode_is_right(kind: str, runner: Runner) -> None:
    requests = (
        Request(slot=0, q_len=21, kv_len=21),
        Request(slot=1, q_len=5, kv_len=37),
        Request(slot=2, q_len=1, kv_len=9),
    )
    passes(runner, case_on(kind, Step(mode=Mode.CHUNKED_PREFILL, requests=requests, padded_tokens=27)))
