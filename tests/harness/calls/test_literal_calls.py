"""Literal calls: what they are given, and cases made of them, placed as the calls see them and judged."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from harness_cases import CALLS, calls_of, decode_case, draft_extend_case
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calls.literal_calls import CallSession, answered_geometry, literal_arguments
from attnfuzz.harness.inside.launcher import JournalingLauncher
from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import Buffer, Call, CallCase, Drawn, View, content_of
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.dtypes import DType


def case(*buffers: Buffer, calls: tuple[Call, ...]) -> CallCase:
    return CallCase(backend="trtllm_mha", buffers=buffers, calls=calls)


def number(value: int, offset: int = 0) -> Buffer:
    return Buffer(name="x", dtype=DType.INT32, size=1, offset=offset, values=(value,))


NUMBERS = Buffer(name="x", dtype=DType.INT32, size=6, values=(0, 1, 2, 3, 4, 5))
WHOLE = View(buffer="x", shape=(6,), stride=(1,))


def test_views_have_the_strides_and_offsets_that_the_call_gives_them() -> None:
    column = View(buffer="x", shape=(3,), stride=(2,), offset=1)
    arguments = literal_arguments(case(NUMBERS, calls=(Call(op="f", arguments={"column": column}),)), 0)
    assert arguments["column"].tolist() == [1, 3, 5]
    assert arguments["column"].stride() == (2,)


def test_views_of_one_buffer_share_memory() -> None:
    call = Call(
        op="f", arguments={"whole": WHOLE, "pair": [WHOLE, View(buffer="x", shape=(2,), stride=(1,), offset=4)]}
    )
    arguments = literal_arguments(case(NUMBERS, calls=(call,)), 0)
    assert isinstance(arguments["pair"], tuple)
    arguments["whole"][5] = 50
    assert arguments["pair"][1].tolist() == [4, 50]


def test_a_view_may_read_its_buffer_as_another_dtype() -> None:
    halves = View(buffer="x", shape=(12,), stride=(1,), dtype=DType.FLOAT16)
    arguments = literal_arguments(case(NUMBERS, calls=(Call(op="f", arguments={"halves": halves}),)), 0)
    assert arguments["halves"].dtype is torch.float16
    assert arguments["halves"].view(torch.int32).tolist() == [0, 1, 2, 3, 4, 5]


def test_scalars_are_handed_over_as_they_are() -> None:
    call = Call(op="f", arguments={"a": 1, "b": 0.5, "c": None, "d": "HND", "e": True})
    assert literal_arguments(case(NUMBERS, calls=(call,)), 0) == {"a": 1, "b": 0.5, "c": None, "d": "HND", "e": True}


def test_a_buffer_that_a_kernel_is_to_fill_is_zeros() -> None:
    out = Buffer(name="x", dtype=DType.BFLOAT16, size=6)
    arguments = literal_arguments(case(out, calls=(Call(op="f", arguments={"out": WHOLE}),)), 0)
    assert arguments["out"].dtype is torch.bfloat16
    assert not arguments["out"].any()


def test_a_drawn_buffer_holds_the_content_that_the_case_draws() -> None:
    drawn = Buffer(name="x", dtype=DType.FLOAT32, size=6, drawn=Drawn(seed=3, std=2.0))
    arguments = literal_arguments(case(drawn, calls=(Call(op="f", arguments={"x": WHOLE}),)), 0)
    content = content_of(drawn)
    assert content is not None
    assert torch.equal(arguments["x"], content)


def test_writes_before_a_call_and_before_earlier_calls_are_applied() -> None:
    calls = (
        Call(op="f", arguments={"x": WHOLE}, writes=(number(10),)),
        Call(op="g", arguments={"x": WHOLE}, writes=(number(30, offset=3), number(31, offset=3))),
        Call(op="h", arguments={"x": WHOLE}, writes=(number(50, offset=5),)),
    )
    each = [literal_arguments(case(NUMBERS, calls=calls), index)["x"].tolist() for index in range(3)]
    assert each == [[10, 1, 2, 3, 4, 5], [10, 1, 2, 31, 4, 5], [10, 1, 2, 31, 4, 50]]


def test_a_change_to_the_arguments_of_one_call_does_not_reach_another() -> None:
    literal_arguments(CALLS, 0)["x"].fill_(7)
    assert literal_arguments(CALLS, 0)["x"].tolist() == [0]


def test_content_in_another_file_is_a_value_error() -> None:
    elsewhere = Buffer(name="x", dtype=DType.INT32, size=6, payload="x")
    with pytest.raises(ValueError, match="in a file next to the case"):
        literal_arguments(case(elsewhere, calls=(Call(op="f", arguments={"x": WHOLE}),)), 0)


@pytest.mark.slow
def test_the_calls_of_a_sound_case_break_nothing(runner: Runner) -> None:
    verdict, calls = runner.trace(decode_case("trtllm_mha"))
    assert not verdict.failures
    assert calls is not None
    (call,) = calls.calls
    arguments = literal_arguments(calls, 0)
    assert ENTRY_POINTS[call.op].breaches(arguments) == ()
    assert [span.kv_len for span in ENTRY_POINTS[call.op].spans(arguments)] == [6, 0, 9, 1]


def test_the_call_that_killed_its_worker_names_the_precondition_it_breaks(runner: Runner) -> None:
    verdict, calls = runner.trace(draft_extend_case("trtllm_mha@21649-before"))
    assert verdict.failures
    assert calls is not None
    first = ENTRY_POINTS[calls.calls[-1].op].breaches(literal_arguments(calls, len(calls.calls) - 1))[0]
    assert first.text.startswith("batch_size is 3, but ")
    assert first.request == 2


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
    calls = calls_of(runner, decode_case("torch_sdpa", 5, padded=1))
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


def test_buffers_of_the_answer_alone_are_not_guarded(runner: Runner) -> None:
    calls = calls_of(runner, decode_case("torch_sdpa", 5, padded=1))
    with placed(calls) as memory:
        names = {allocation.name for allocation in memory.allocations()}
    assert "query" in names
    assert not any(name.startswith("request_") for name in names)


def test_the_geometry_of_an_answer_to_padding_alone(runner: Runner) -> None:
    calls = calls_of(runner, decode_case("torch_sdpa", 5, padded=1))
    assert calls.answer is not None
    geometry = answered_geometry(replace(calls, answer=replace(calls.answer, requests=())))
    assert (geometry.q_heads, geometry.head_dim_vo, geometry.dtype) == (4, 8, DType.BFLOAT16)
