"""Calls judged by what their own arguments ask for, and how that differs from what their step wants."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness_cases import calls_of, decode_case
from msgspec.structs import replace
from repetition import examples
from small_cases import drawn, narrowest

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calls.asked import NamesNothing, NotJudgeable, asked
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage.differences import differences
from attnfuzz.harness.triage.evidence import BETWEEN, collect
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import Buffer, Call, CallAnswer, CallCase, Expected, View
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.dtypes import DType


@examples(3, 15)
@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla", "trtllm_mha_windowed"])
def test_every_attention_call_of_a_correct_backend_matches_its_arguments(
    runner: Runner, backend: str, count: int
) -> None:
    judged = 0
    for case in narrowest(drawn(backend, 15), count):
        # A pool with a hole has more addresses than a file could hold.
        _, calls = runner.trace(replace(case, pages=replace(case.pages, hole=0)))
        if calls is None:
            continue
        evidence = collect(calls, runner)
        assert evidence.breaches == ()
        assert evidence.obstacles == ()
        assert [each.failure for each in evidence.asked] == [None] * len(evidence.asked)
        assert len(evidence.asked) == sum(call.op not in BETWEEN for call in calls.calls)
        judged += len(evidence.asked)
    assert judged


def test_a_call_that_names_unwritten_keys_is_not_judged(runner: Runner, pinned: Callable[[str], AnyCase]) -> None:
    case = pinned("lengths_of_whole_pages")
    assert isinstance(case, Case)
    with pytest.raises(NamesNothing, match="request 0 has 2 keys by seq_lens, and the one at 1, slot 1 of page 1"):
        asked(calls_of(runner, case), 0, resolve(case.backend).contract)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bmm1_scale": None}, "bmm1_scale is None, not a single number"),
        (
            {"bmm2_scale": View(buffer="lse", shape=(2,), stride=(1,))},
            r"bmm2_scale is float32 \[2\], not a single number",
        ),
        ({"query": None}, "query is missing"),
    ],
)
def test_a_call_whose_arguments_are_no_numbers_or_missing_can_not_be_judged(
    runner: Runner, changes: dict[str, View | None], words: str
) -> None:
    calls = calls_of(runner, decode_case("trtllm_mha"))
    (call,) = calls.calls
    case = replace(calls, calls=(replace(call, arguments=call.arguments | changes),))
    with pytest.raises(NotJudgeable, match=words):
        asked(case, 0, resolve(case.backend).contract)


def test_factors_that_are_not_given_are_1(runner: Runner) -> None:
    calls = calls_of(runner, decode_case("trtllm_mha"))
    (call,) = calls.calls
    bare = {name: value for name, value in call.arguments.items() if name not in {"bmm1_scale", "bmm2_scale"}}
    answer = asked(replace(calls, calls=(replace(call, arguments=bare),)), 0, resolve(calls.backend).contract).answer
    assert answer is not None
    assert (answer.bmm1_scale, answer.bmm2_scale) == (1.0, 1.0)


def test_a_call_with_a_mask_of_its_own_can_not_be_judged(runner: Runner) -> None:
    calls = calls_of(runner, decode_case("trtllm_mha"))
    case = replace(calls, calls=(replace(calls.calls[0], op="trtllm_fmha_v2_prefill"),))
    with pytest.raises(NotJudgeable, match="the meaning of its arguments is unknown"):
        asked(case, 0, resolve(case.backend).contract)


def test_a_call_whose_metadata_is_too_short_can_not_be_judged() -> None:
    case = case_file.load(Path(__file__).parents[1] / "short_seq_lens.json")
    assert isinstance(case, CallCase)
    with pytest.raises(NotJudgeable, match="does not say which keys every request has"):
        asked(case, 0, resolve(case.backend).contract)


def test_a_negative_length_can_not_be_judged(runner: Runner) -> None:
    step = Step(mode=Mode.EXTEND, requests=(Request(0, 2, 6), Request(1, 1, 3)), padded_tokens=3)
    calls = calls_of(runner, replace(decode_case("trtllm_mha"), steps=(step,)))
    buffers = tuple(replace(each, values=(-1, 3)) if each.name == "seq_lens" else each for each in calls.buffers)
    with pytest.raises(NotJudgeable, match="does not say which keys every request has"):
        asked(replace(calls, buffers=buffers), 0, resolve(calls.backend).contract)


KEYS = Buffer(name="keys", dtype=DType.FLOAT32, size=8, values=(0, 1, 2, 3, 4, 5, 6, 7))


def rows(buffer: str, first: int, count: int) -> View:
    """Rows of one head and one element each."""
    return View(buffer=buffer, shape=(count, 1, 1), stride=(1, 1, 1), offset=first)


def expected(first_row: int, q_len: int, first_key: int, kv_len: int) -> Expected:
    keys = rows("keys", first_key, kv_len)
    return Expected(first_row=first_row, query=rows("query", first_row, q_len), key=keys, value=keys)


def case(*requests: Expected, **changes: object) -> CallCase:
    answer = CallAnswer(out=rows("out", 0, 4), requests=requests, bmm1_scale=0.5, bmm2_scale=1.0)
    outputs = (Buffer(name=name, dtype=DType.FLOAT32, size=4) for name in ("query", "out"))
    call = Call(op="attend", arguments={"out": answer.out})
    return CallCase(backend="x", buffers=(KEYS, *outputs), calls=(call,), answer=replace(answer, **changes))


WANTED = case(expected(0, 1, 0, 3), expected(1, 2, 3, 4))


def sent(asked: CallCase) -> list[tuple[str, str]]:
    return [(difference.text, difference.argument) for difference in differences(asked, WANTED)]


def test_equal_calls_have_no_differences() -> None:
    assert sent(WANTED) == []


def test_scalars_come_first() -> None:
    assert sent(case(expected(0, 1, 0, 2), expected(1, 2, 3, 4), window_left=7, sinks=rows("query", 0, 1))) == [
        ("The call has window_left 7, but the step requires -1.", "window_left"),
        ("The call has sinks, but the step requires none.", "sinks"),
        ("Row 0, of request 0, sees 2 keys in the call, but 3 in the step.", "seq_lens"),
    ]


def test_of_each_request_the_first_row_is_reported_that_sees_another_number_of_keys() -> None:
    assert sent(case(expected(0, 1, 0, 3), expected(1, 1, 3, 4), expected(2, 1, 3, 1))) == [
        ("Row 1, of request 1, sees 4 keys in the call, but 3 in the step.", "seq_lens"),
    ]


def test_a_row_that_no_request_of_the_call_has_is_reported() -> None:
    assert sent(case(expected(0, 1, 0, 3), expected(1, 1, 3, 3))) == [
        ("Row 2, of request 1, belongs to no request of the call.", "query"),
    ]


def test_as_many_but_other_keys_are_reported_from_the_first_that_differs() -> None:
    others = replace(KEYS, values=(0, 1, 2, 3, 4, 9, 9, 7))
    asked = case(expected(0, 1, 0, 3), expected(1, 2, 3, 4))
    asked = replace(asked, buffers=(others, *asked.buffers[1:]))
    assert sent(asked) == [
        ("Request 1 has other keys in the call than in the step, starting at key 2 of 4.", "block_tables"),
    ]
