"""Cases made of literal calls: placed as the calls see them, run like any other, judged by their answer if any."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calls.literal_calls import CallSession, answered_geometry
from attnfuzz.harness.inside.launcher import JournalingLauncher
from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.kernels.backend import Bench
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import Buffer, Call, CallCase, View
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.dtypes import DType

MALFORMED = Path(__file__).parents[1] / "short_seq_lens.json"
"""Three requests of one token each, whose lengths and page table have rows for two."""


def malformed() -> CallCase:
    case = case_file.load(MALFORMED)
    assert isinstance(case, CallCase)
    return case


def failures(verdict: Verdict) -> list[tuple[Kind, str]]:
    return [(failure.kind, failure.place) for failure in verdict.failures]


@pytest.mark.slow
def test_malformed_metadata_faults_at_the_row_that_is_missing(runner: Runner) -> None:
    case = malformed()
    verdict = runner.verdict(case)
    assert failures(verdict) == [(Kind.ILLEGAL_ACCESS, "seq_lens")]
    words = "read at seq_lens: 0 bytes past the end (element 2 of 2)"
    assert verdict.failures[0].message.startswith(words)
    text = " ".join(render_failure(case, verdict).split())
    assert words in text
    assert "batch_size 3" in text


def test_calls_without_an_answer_pass_if_they_do_no_harm(runner: Runner) -> None:
    case = malformed()
    call = case.calls[0]
    fewer = replace(call, arguments=call.arguments | {"batch_size": 2})
    verdict = runner.verdict(replace(case, calls=(fewer,)))
    assert verdict.failures == ()
    assert verdict.rows == 0


def test_an_argument_that_a_kernel_rejects_is_a_failure(runner: Runner) -> None:
    case = malformed()
    call = case.calls[0]
    wrong = replace(call, arguments=call.arguments | {"kv_layout": "DHN"})
    assert failures(runner.verdict(replace(case, calls=(wrong,)))) == [(Kind.UNEXPECTED_REJECTION, "ValueError")]


def test_calls_that_a_backend_lacks_are_unsupported(runner: Runner) -> None:
    case = malformed()
    assert runner.verdict(case, "torch_sdpa").unsupported == (
        "torch_sdpa does not support calls of trtllm_batch_context_with_kv_cache"
    )


def test_a_wrong_answer_is_a_mismatch(runner: Runner) -> None:
    _, calls = runner.trace(decode_case("torch_sdpa", 5, padded=1))
    assert calls is not None
    assert calls.answer is not None
    assert failures(runner.verdict(calls)) == []
    scaled = replace(calls, answer=replace(calls.answer, bmm2_scale=2.0))
    assert failures(runner.verdict(scaled)) == [(Kind.OUTPUT_MISMATCH, "out")]


@contextmanager
def placed(case: CallCase) -> Iterator[GuardedMemory]:
    """The memory of a session on `case`."""
    with Arena() as arena, GuardedMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
        launcher = JournalingLauncher(memory, lambda _: None)
        CallSession(case, resolve("torch_sdpa"), Bench(memory, launcher, torch.device("cpu")))
        yield memory


def with_views(*views: View) -> CallCase:
    buffer = Buffer(name="x", dtype=DType.INT32, size=7, values=tuple(range(7)))
    return CallCase(backend="torch_sdpa", buffers=(buffer,), calls=(Call(op="attend", arguments={"x": list(views)}),))


WITH_GAP = View(buffer="x", shape=(2, 3), stride=(4, 1))


def test_a_buffer_has_the_form_of_the_view_that_spans_it() -> None:
    with placed(with_views(WITH_GAP)) as memory:
        (allocation,) = memory.allocations()
    assert (allocation.shape, allocation.stride) == ((2, 3), (4, 1))


@pytest.mark.parametrize(
    "views",
    [
        (WITH_GAP, View(buffer="x", shape=(7,), stride=(1,))),
        (View(buffer="x", shape=(2, 2), stride=(4, 1)),),
        (View(buffer="x", shape=(6,), stride=(1,), offset=1),),
        (View(buffer="x", shape=(4, 4), stride=(1, 1)),),
    ],
)
def test_a_buffer_is_flat_where_no_view_says_more(views: tuple[View, ...]) -> None:
    with placed(with_views(*views)) as memory:
        (allocation,) = memory.allocations()
    assert (allocation.shape, allocation.stride) == ((7,), (1,))


def test_gaps_between_elements_are_guarded() -> None:
    with placed(with_views(WITH_GAP)) as memory:
        assert memory.damage().result() == []


def test_what_only_the_answer_needs_is_not_guarded(runner: Runner) -> None:
    _, calls = runner.trace(decode_case("torch_sdpa", 5, padded=1))
    assert calls is not None
    with placed(calls) as memory:
        names = {allocation.name for allocation in memory.allocations()}
    assert "query" in names
    assert not any(name.startswith("request_") for name in names)


def test_the_geometry_of_an_answer_to_padding_alone(runner: Runner) -> None:
    _, calls = runner.trace(decode_case("torch_sdpa", 5, padded=1))
    assert calls is not None
    assert calls.answer is not None
    geometry = answered_geometry(replace(calls, answer=replace(calls.answer, requests=())))
    assert (geometry.q_heads, geometry.head_dim_vo, geometry.dtype) == (4, 8, DType.BFLOAT16)
