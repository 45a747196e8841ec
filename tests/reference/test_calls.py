"""Cases made of literal calls: what their buffers hold, and which of them can exist."""

import math
import random

import msgspec
import pytest
import torch
from msgspec.structs import replace

from attnfuzz.reference import call_validity
from attnfuzz.reference.call_validity import MAX_BYTES, validate_calls
from attnfuzz.reference.calls import (
    Argument,
    Buffer,
    Call,
    CallAnswer,
    CallCase,
    Drawn,
    Expected,
    ExpectedLists,
    ExpectedTensor,
    View,
    check_content,
    content_of,
    pack,
    unpack,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.validity import ImpossibleCase


def view(buffer: str, *shape: int, **changes: object) -> View:
    dense = View(buffer=buffer, shape=shape, stride=tuple(torch.empty(shape).stride()))
    return msgspec.structs.replace(dense, **changes)


BUFFERS = (
    Buffer(name="q", dtype=DType.BFLOAT16, size=16, bits=pack(bytes(32))),
    Buffer(name="kv", dtype=DType.FLOAT8_E4M3, size=48, values=(1,) * 48),
    Buffer(name="seq_lens", dtype=DType.INT32, size=1, values=(3,)),
    Buffer(name="out", dtype=DType.BFLOAT16, size=24),
    Buffer(name="lse", dtype=DType.FLOAT32, size=6),
    Buffer(name="mask", dtype=DType.UINT8, size=8, values=(1,) * 8),
    Buffer(name="lengths", dtype=DType.INT64, size=1, values=(2,)),
)
REQUEST = Expected(first_row=1, query=view("q", 2, 2, 4), key=view("kv", 3, 1, 4), value=view("kv", 3, 1, 4, offset=24))
ANSWER = CallAnswer(
    out=view("out", 3, 2, 4), lse=view("lse", 3, 2), requests=(REQUEST,), bmm1_scale=0.5, bmm2_scale=1.0
)
CALL = Call(
    op="attend",
    arguments={
        "query": view("q", 2, 2, 4),
        "kv_cache": [view("kv", 3, 1, 4), view("kv", 3, 1, 4, offset=24)],
        "mask": view("mask", 8, dtype=DType.BOOL),
        "batch": 1,
        "scale": 0.5,
        "layout": "HND",
        "sinks": None,
        "causal": True,
    },
    writes=(Buffer(name="seq_lens", dtype=DType.INT32, size=1, values=(2,)),),
)
CASE = CallCase(backend="torch_sdpa", buffers=BUFFERS, calls=(CALL,), answer=ANSWER)
EXPECTED = ExpectedTensor(
    name="out", view=view("out", 3, 8), right=view("out", 3, 8, stride=(0, 1)), bound=view("lse", 3, 1)
)
LISTS = ExpectedLists(name="lists", view=view("seq_lens", 1, 1), scores=view("lse", 2), lengths=view("lengths", 1))


def test_a_case_that_can_exist_is_accepted() -> None:
    validate_calls(CASE)
    validate_calls(replace(CASE, answer=None))
    validate_calls(replace(CASE, answer=None, expected=(EXPECTED,)))
    validate_calls(replace(CASE, answer=None, lists=(LISTS,)))


@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff" * 100, bytes(1 << 16), random.Random(1).randbytes(1 << 18)], ids=len
)
def test_packed_content_is_unpacked(content: bytes) -> None:
    assert unpack(pack(content), len(content)) == content


def test_long_content_that_repeats_is_packed_small() -> None:
    assert len(pack(random.Random(1).randbytes(64) * (1 << 13))) < 10_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%%%", "damaged content"),
        ("aGVsbG8=", "damaged content"),
        (pack(bytes(5)), "content of more than 4 bytes"),
        (pack(bytes(4))[:8], "damaged content"),
    ],
)
def test_damaged_content_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unpack(text, 4)


def test_contents_keep_every_bit() -> None:
    # A signalling NaN, and a negative zero.
    bits = b"\x81\x7f\x00\x80"
    content = content_of(Buffer(name="x", dtype=DType.BFLOAT16, size=2, bits=pack(bits)))
    assert content is not None
    assert bytes(content.view(torch.uint8).tolist()) == bits
    assert content_of(Buffer(name="x", dtype=DType.BFLOAT16, size=2)) is None
    zeros = content_of(Buffer(name="x", dtype=DType.FLOAT8_E4M3, size=3, zeros=True))
    assert zeros is not None
    assert (zeros.dtype, bytes(zeros.view(torch.uint8).tolist())) == (torch.float8_e4m3fn, bytes(3))
    empty = content_of(Buffer(name="x", dtype=DType.INT32, size=0, bits=pack(b"")))
    assert empty is not None
    assert empty.dtype == torch.int32


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (Buffer(name="x", dtype=DType.INT32, size=2, values=(1,)), "1 values for a size of 2"),
        (Buffer(name="x", dtype=DType.INT32, size=1, values=(1 << 40,)), "values that are no int32"),
        (Buffer(name="x", dtype=DType.INT32, size=2, bits=pack(bytes(7))), "7 bytes of content for a size of 2 int32"),
        (Buffer(name="x", dtype=DType.INT32, size=2, payload="x"), "load the case from its file"),
    ],
)
def test_content_that_does_not_fit_is_refused(buffer: Buffer, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        content_of(buffer)


def with_buffer(**changes: object) -> CallCase:
    return replace(CASE, buffers=(*BUFFERS[:2], replace(BUFFERS[2], **changes), *BUFFERS[3:]))


def with_argument(argument: View) -> CallCase:
    return replace(CASE, calls=(replace(CALL, arguments=CALL.arguments | {"query": argument}),))


def with_write(**changes: object) -> CallCase:
    return replace(CASE, calls=(replace(CALL, writes=(replace(CALL.writes[0], **changes),)),))


def with_answer(**changes: object) -> CallCase:
    return replace(CASE, answer=replace(ANSWER, **changes))


def with_tensor(**changes: object) -> CallCase:
    return replace(CASE, answer=None, expected=(replace(EXPECTED, **changes),))


def with_lists(**changes: object) -> CallCase:
    return replace(CASE, answer=None, lists=(replace(LISTS, **changes),))


def with_request(**changes: object) -> CallCase:
    return with_answer(requests=(replace(REQUEST, **changes),))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (replace(CASE, backend=""), "backend is ''"),
        (replace(CASE, calls=()), "calls is (): must be at least one"),
        (with_buffer(name="q"), "name of a buffer is 'q'"),
        (with_buffer(size=-1), "must be 0 or more, in 64 bits"),
        (with_buffer(offset=1), "must have a size, no offset"),
        (with_buffer(size=MAX_BYTES), f"all may have {MAX_BYTES} bytes"),
        (with_buffer(values=None, bits="%"), "content of seq_lens is 'damaged'"),
        (with_buffer(bits=pack(bytes(4))), "content of seq_lens is 'given twice'"),
        (with_buffer(zeros=True), "content of seq_lens is 'given twice'"),
        (with_buffer(values=None, payload="x"), "load the case from its file"),
        (with_argument(view("nobody", 2)), "must name one of the buffers q, kv, seq_lens"),
        (with_argument(view("q", 3, 2, 4)), "must end within the 16 elements there are"),
        (with_argument(view("q", 2, 2, 4, offset=1)), "must end within the 16 elements there are"),
        (with_argument(view("q", 4, dtype=DType.INT64, offset=1)), "must end within the 4 elements there are"),
        (with_argument(view("q", 2, 2, stride=(1,))), "must have a stride for each size, none negative"),
        (with_argument(view("q", 2, 2, stride=(2, -1))), "must have a stride for each size, none negative"),
        (with_argument(view("seq_lens", 1, dtype=DType.INT64)), "must divide the 4 bytes of the buffer"),
        (with_write(name="nobody"), "must lie in a buffer of its dtype"),
        (with_write(dtype=DType.INT64), "must lie in a buffer of its dtype"),
        (with_write(offset=1), "must lie in a buffer of its dtype"),
        (with_write(values=None), "must have content"),
        (with_answer(writes=(Buffer(name="out", dtype=DType.BFLOAT16, size=4),)), "must have content"),
        (with_answer(out=view("out", 6, 4)), "must be [rows, q_heads, dim]"),
        (with_answer(lse=view("lse", 3)), "must be float32 [3, 2]"),
        (with_answer(sinks=view("lse", 3)), "must be floating-point numbers [2]"),
        (with_answer(roundings=0), "must be at least 1"),
        (with_request(query=view("q", 4, 4)), "must be [tokens, heads, dim] tensors"),
        (with_request(value=view("kv", 2, 1, 4)), "q, K and V must fit each other"),
        (with_request(query=view("q", 1, 2, 8)), "q, K and V must fit each other"),
        (with_request(query=view("q", 1, 4, 4)), "must give rows of [2, 4]"),
        (with_request(first_row=2), "must lie in the 3 rows"),
        (with_request(query=view("lse", 1, 1, 4)), "must give rows of"),
        (with_request(key=view("q", 3, 1, 4)), "out and q must be alike, and K and V"),
        (with_tensor(right=view("q", 2, 8)), "expected: right is (2, 8): must be bfloat16 [3, 8]"),
        (with_tensor(right=view("kv", 3, 8)), "must be bfloat16 [3, 8]"),
        (with_tensor(bound=view("lse", 2, 1)), "must be float32 or float64, and broadcast to [3, 8]"),
        (with_tensor(bound=view("lse", 1, 3, 1)), "must be float32 or float64, and broadcast to [3, 8]"),
        (with_tensor(bound=view("out", 3, 1)), "must be float32 or float64, and broadcast to [3, 8]"),
        (with_tensor(view=view("nobody", 3, 8)), "must name one of the buffers"),
        (with_answer(bmm1_scale=math.inf), "answer: bmm1_scale is inf: must be finite"),
        (with_lists(view=view("seq_lens", 1)), "lists: view is (1,): must be int32 or int64 [rows, k]"),
        (with_lists(scores=view("kv", 2)), "lists: scores is (2,): must be float32 [n]"),
        (with_lists(names=view("lengths", 1)), "lists: names is (1,): must be int64 [2]"),
        (with_lists(lengths=view("seq_lens", 1)), "lists: lengths is (1,): must be int64 [1]"),
        (with_lists(scores=view("lse", 3)), "lists: lengths is [2]: must add up to the 3 scores"),
    ],
)
def test_a_case_that_can_not_exist_is_refused(case: CallCase, words: str) -> None:
    with pytest.raises(ImpossibleCase) as caught:
        validate_calls(case)
    assert words in str(caught.value)


def test_requests_of_an_answer_have_the_same_heads() -> None:
    other = replace(REQUEST, first_row=0, key=view("kv", 3, 2, 4), value=view("kv", 3, 2, 4, offset=24))
    with pytest.raises(ImpossibleCase, match="all must have the heads and dims of the first"):
        validate_calls(with_answer(requests=(REQUEST, other)))


def wide(shape: tuple[int, ...], stride: tuple[int, ...]) -> View:
    return View(buffer="q", shape=shape, stride=stride)


def with_named_argument(name: str, value: Argument = 1) -> CallCase:
    return replace(CASE, calls=(replace(CALL, arguments=CALL.arguments | {name: value}),))


@pytest.mark.parametrize(
    "name",
    [
        '**dict(a=__import__("os").system("touch PWNED")), b',
        "class",
        "a\nb",
        "a\0b",
        "",
        "1st",
        "a" * 257,
        "l\N{LATIN SMALL LETTER LONG S}e",
        "a b",
    ],
)
def test_an_argument_has_the_name_of_a_parameter(name: str) -> None:
    with pytest.raises(ImpossibleCase, match="must be a Python identifier of 256 characters at most"):
        validate_calls(with_named_argument(name))


@pytest.mark.parametrize("op", ["", "f()", "a.b.", "f[0", "f\n", "f" * 257, "import os"])
def test_the_op_of_a_call_must_be_the_name_of_a_kernel(op: str) -> None:
    with pytest.raises(ImpossibleCase, match="must be the name of a kernel"):
        validate_calls(replace(CASE, calls=(replace(CALL, op=op),)))


@pytest.mark.parametrize("op", ["f", "Wrapper.run", "scaled_dot_product_attention[FLASH_ATTENTION]"])
def test_methods_and_variants_are_kernels_too(op: str) -> None:
    validate_calls(replace(CASE, calls=(replace(CALL, op=op),)))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (replace(CASE, backend="a\0b"), "must be the name of a backend"),
        (replace(CASE, backend="\u202eb"), "must be the name of a backend"),
        (replace(CASE, backend="b" * 5000), "must be the name of a backend"),
        (replace(CASE, calls=(CALL,) * 5000), "must be 4096 at most"),
        (with_buffer(name="a\x1b]52;c;aGk=\x07"), "must be 256 printable characters"),
        (with_buffer(size=1 << 80), "must be 0 or more, in 64 bits"),
        (with_write(size=-4), "must be 0 or more, in 64 bits"),
        (with_named_argument("batch_size", 1 << 70), "must fit 64 bits"),
        (with_named_argument("kv_layout", "\x1b[31m"), "must be 256 printable characters"),
        (with_answer(roundings=1 << 70), "must fit 64 bits"),
        (with_argument(wide((1,) * 65, (1,) * 65)), "65 axes"),
        (with_argument(wide((1 << 70,), (0,))), "must fit 64 bits"),
        (with_argument(wide((1,), (1 << 70,))), "must fit 64 bits"),
        (with_argument(wide((0, 1 << 70), (1, 1))), "must fit 64 bits"),
        (with_argument(wide((1 << 40,), (0,))), f"must be {MAX_BYTES} bytes at most"),
    ],
)
def test_numbers_and_names_have_bounds(case: CallCase, words: str) -> None:
    with pytest.raises(ImpossibleCase) as caught:
        validate_calls(case)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 1000


def drawn_in(dtype: DType, size: int) -> CallCase:
    return replace(CASE, buffers=(*BUFFERS, Buffer(name="more", dtype=dtype, size=size, drawn=Drawn(seed=1))))


def test_numbers_that_are_drawn_count_as_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_validity, "MAX_BYTES", 1 << 20)
    validate_calls(drawn_in(DType.FLOAT8_E4M3, (1 << 18) - 1000))
    with pytest.raises(ImpossibleCase, match=f"all may have {1 << 20} bytes"):
        validate_calls(drawn_in(DType.FLOAT8_E4M3, 1 << 18))


def test_a_case_must_fit_the_memory_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_validity, "_available_bytes", lambda: 3 << 30)
    with pytest.raises(ImpossibleCase, match="this machine has 3072 MiB of memory left"):
        validate_calls(drawn_in(DType.FLOAT32, 1 << 28))


def test_looking_at_content_does_not_make_it() -> None:
    huge = Buffer(name="x", dtype=DType.FLOAT32, size=1 << 50)
    check_content(replace(huge, drawn=Drawn(seed=1)))
    check_content(replace(huge, zeros=True))
    with pytest.raises(ValueError, match="1048576 bytes of content for a size of"):
        check_content(replace(huge, bits=pack(bytes(1 << 20))))
    with pytest.raises(ValueError, match="seed"):
        check_content(Buffer(name="x", dtype=DType.FLOAT32, size=1, drawn=Drawn(seed=-1)))
