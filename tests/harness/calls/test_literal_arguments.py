"""What literal calls are handed, without running them."""

import pytest
import torch
from harness_cases import CALLS, decode_case, draft_extend_case

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.reference.calls import Buffer, Call, CallCase, Drawn, View, content_of
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


def test_drawn_content_is_what_the_case_draws() -> None:
    drawn = Buffer(name="x", dtype=DType.FLOAT32, size=6, drawn=Drawn(seed=3, std=2.0))
    arguments = literal_arguments(case(drawn, calls=(Call(op="f", arguments={"x": WHOLE}),)), 0)
    content = content_of(drawn)
    assert content is not None
    assert torch.equal(arguments["x"], content)


def test_what_others_wrote_before_a_call_and_before_earlier_ones_is_there() -> None:
    calls = (
        Call(op="f", arguments={"x": WHOLE}, writes=(number(10),)),
        Call(op="g", arguments={"x": WHOLE}, writes=(number(30, offset=3), number(31, offset=3))),
        Call(op="h", arguments={"x": WHOLE}, writes=(number(50, offset=5),)),
    )
    each = [literal_arguments(case(NUMBERS, calls=calls), index)["x"].tolist() for index in range(3)]
    assert each == [[10, 1, 2, 3, 4, 5], [10, 1, 2, 31, 4, 5], [10, 1, 2, 31, 4, 50]]


def test_a_change_to_what_one_call_was_handed_is_not_seen_by_another() -> None:
    literal_arguments(CALLS, 0)["x"].fill_(7)
    assert literal_arguments(CALLS, 0)["x"].tolist() == [0]


def test_content_in_another_file_is_a_value_error() -> None:
    elsewhere = Buffer(name="x", dtype=DType.INT32, size=6, payload="x")
    with pytest.raises(ValueError, match="in a file beside the case"):
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


def test_the_call_that_killed_its_worker_tells_what_it_breaks(runner: Runner) -> None:
    verdict, calls = runner.trace(draft_extend_case("trtllm_mha@21649-before"))
    assert verdict.failures
    assert calls is not None
    first = ENTRY_POINTS[calls.calls[-1].op].breaches(literal_arguments(calls, len(calls.calls) - 1))[0]
    assert first.text.startswith("batch_size is 3, but ")
    assert first.request == 2
