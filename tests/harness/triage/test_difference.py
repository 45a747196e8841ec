"""What a call asks for beside what its step wants, in words."""

from msgspec.structs import replace

from attnfuzz.harness.triage.asked import differences
from attnfuzz.reference.calls import Buffer, Call, CallAnswer, CallCase, Expected, View
from attnfuzz.reference.dtypes import DType

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


def told(asked: CallCase) -> list[tuple[str, str]]:
    return [(difference.text, difference.argument) for difference in differences(asked, WANTED)]


def test_what_is_the_same_has_no_differences() -> None:
    assert told(WANTED) == []


def test_scalars_come_first() -> None:
    assert told(case(expected(0, 1, 0, 2), expected(1, 2, 3, 4), window_left=7, sinks=rows("query", 0, 1))) == [
        ("The call has window_left 7, the step wants -1.", "window_left"),
        ("The call has sinks, the step wants none.", "sinks"),
        ("Row 0, of request 0, sees 2 keys in the call, and 3 in the step.", "seq_lens"),
    ]


def test_of_each_request_the_first_row_is_told_that_sees_another_number_of_keys() -> None:
    assert told(case(expected(0, 1, 0, 3), expected(1, 1, 3, 4), expected(2, 1, 3, 1))) == [
        ("Row 1, of request 1, sees 4 keys in the call, and 3 in the step.", "seq_lens"),
    ]


def test_a_row_that_no_request_of_the_call_has_is_told() -> None:
    assert told(case(expected(0, 1, 0, 3), expected(1, 1, 3, 3))) == [
        ("Row 2, of request 1, belongs to no request of the call.", "query"),
    ]


def test_as_many_but_other_keys_are_told_from_the_first_that_differs() -> None:
    others = replace(KEYS, values=(0, 1, 2, 3, 4, 9, 9, 7))
    asked = case(expected(0, 1, 0, 3), expected(1, 2, 3, 4))
    asked = replace(asked, buffers=(others, *asked.buffers[1:]))
    assert told(asked) == [
        ("Request 1 has other keys in the call than in the step, from key 2 of 4 on.", "block_tables"),
    ]
