"""What can't be made into a case is refused with one line that says what to do."""

import contextlib
from typing import Any

import pytest
import torch
from entry_point_calls import CALLS
from recorded_calls import FOLDER, recorded_call

from attnfuzz.harness.dumps import case_of_call
from attnfuzz.harness.dumps.case_of_call import make_case
from attnfuzz.harness.dumps.find_calls import chosen_call, with_earlier
from attnfuzz.harness.dumps.recorded import CallStatus, DumpError, OtherValue, RecordedCall
from attnfuzz.harness.dumps.understood import breaches_of

DECODE = "trtllm_batch_decode_with_kv_cache"
ARGUMENTS: dict[str, Any] = {
    "query": torch.zeros(1, 2, 8),
    "kv_cache": (torch.zeros(2, 1, 4, 8), torch.zeros(2, 1, 4, 8)),
    "workspace_buffer": torch.zeros(1 << 14, dtype=torch.uint8),
    "block_tables": torch.zeros(1, 1, dtype=torch.int32),
    "seq_lens": torch.ones(1, dtype=torch.int32),
    "max_seq_len": 1,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask": torch.zeros(4, dtype=torch.uint8)}, "mask=a .* is unsupported"),
        ({"backend": "xqa"}, "backend='xqa' is unsupported"),
        ({"no_such_argument": 3}, "no argument no_such_argument"),
        ({"bmm1_scale": None}, "bmm1_scale must be a number, but was recorded as NoneType"),
        ({"bmm2_scale": torch.ones(2)}, "bmm2_scale must be a number, but was recorded as a tensor"),
        ({"seq_lens": 7}, "seq_lens must be a tensor, but was recorded as int"),
        ({"max_seq_len": True}, "max_seq_len must be an integer, but was recorded as bool"),
        ({"query": OtherValue("Lazy", "<lazy>")}, "query must be a tensor, but was recorded as Lazy"),
        ({"out": OtherValue("FP4Tensor", "...")}, "out is FP4Tensor"),
        ({"out_dtype": "nvfp4"}, "out_dtype is nvfp4"),
        ({"query": torch.zeros(1, 2, 8, dtype=torch.complex64)}, "query is complex64, which a case can't hold"),
        ({"block_tables": torch.zeros(1, dtype=torch.int32)}, "block_tables is int32 .1., but must be"),
    ],
)
def test_an_argument_that_no_case_can_have_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DumpError, match=words) as refused:
        make_case(recorded_call(DECODE, ARGUMENTS | changes))
    assert str(refused.value).startswith(str(FOLDER))
    assert "\n" not in str(refused.value)


ODD: list[Any] = [
    None,
    0,
    True,
    1 << 70,
    -(1 << 70),
    float("nan"),
    "",
    torch.bfloat16,
    OtherValue("list", "[1]"),
    (),
    (torch.zeros(2, 2), torch.zeros(3)),
    torch.tensor(1),
    torch.zeros(0),
    torch.ones(1),
    torch.zeros(3, 1).expand(3, 2),
    torch.zeros(1, dtype=torch.int32).expand(3),
    torch.tensor([0, -5, 1 << 30], dtype=torch.int32),
    torch.zeros(3, dtype=torch.uint32),
    torch.zeros(2, 2, 2, 2, 2, dtype=torch.complex64),
]


@pytest.mark.slow
@pytest.mark.parametrize("function", CALLS)
def test_any_recorded_argument_makes_a_case_or_one_line_that_says_why_not(function: str) -> None:
    legal = CALLS[function]()
    scalars = ("bmm1_scale", "bmm2_scale", "window_left", "causal", "is_causal", "kv_layout", "sparse_mla_top_k")
    for name in {*legal, *scalars, "q_len_per_req", "kv_seq_lens_cpu"}:
        for odd in ODD:
            call = recorded_call(function, legal | {name: odd})
            for look in (make_case, breaches_of):
                with contextlib.suppress(DumpError):
                    look(call)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bmm1_scale": None}, "bmm1_scale is None, not a single number"),
        ({"bmm2_scale": torch.ones(2)}, "bmm2_scale is float32 [2], not a single number"),
        ({"causal": "yes"}, "whether it is causal is neither true nor false"),
    ],
)
def test_results_of_arguments_that_our_kernels_lack_are_not_judged(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(case_of_call, "check_arguments", lambda *_: None)
    case = make_case(recorded_call(DECODE, ARGUMENTS | changes))
    assert case.answer is None
    assert f"Only accesses are judged, not results: {words}." in case.notes


def test_an_argument_that_is_missing_is_named() -> None:
    without = {name: value for name, value in ARGUMENTS.items() if name != "max_seq_len"}
    with pytest.raises(DumpError, match="was recorded without max_seq_len"):
        make_case(recorded_call(DECODE, without))


def test_a_function_without_a_backend_is_reported_with_the_importable_ones() -> None:
    with pytest.raises(DumpError, match=f"has no kernel xqa; import a call of .*{DECODE}.*--backend"):
        make_case(recorded_call("xqa", ARGUMENTS))


def test_arguments_that_no_case_holds_but_that_change_nothing_are_reported() -> None:
    case = make_case(recorded_call(DECODE, ARGUMENTS | {"request_order": OtherValue("list", "[None]")}))
    assert "request_order was [None] (list), which a case can't hold: its default applies." in case.notes


def test_a_method_without_an_equivalent_function_is_refused() -> None:
    with pytest.raises(DumpError, match=r"W\.run is a method of an object"):
        make_case(recorded_call("W.run", {}, self_id=5))


def test_the_last_call_that_crashed_is_chosen_else_the_last() -> None:
    done, crashed = recorded_call(DECODE, {}, status=CallStatus.COMPLETED), recorded_call(DECODE, {})
    assert chosen_call([done, crashed, crashed, done], None) == 2
    assert chosen_call([done, done], None) == 1
    assert chosen_call([done, crashed, done], 1) == 0
    with pytest.raises(DumpError, match="there is no call 4: calls are numbered from 1 to 3"):
        chosen_call([done, crashed, done], 4)


def test_calls_that_no_backend_has_are_chosen_only_if_there_are_no_others() -> None:
    outer, inner = recorded_call(DECODE, {}), recorded_call("xqa", {})
    done = recorded_call(DECODE, {}, status=CallStatus.COMPLETED)

    def has(call: RecordedCall) -> bool:
        return call.function == DECODE

    assert chosen_call([outer, inner], None, has) == 0
    assert chosen_call([outer, inner, done, inner], None, has) == 0
    assert chosen_call([done, inner, inner], None, has) == 0
    assert chosen_call([inner, inner], None, has) == 1
    assert chosen_call([outer, inner], 2, has) == 1


def test_earlier_calls_are_those_of_the_same_process() -> None:
    calls = [recorded_call(DECODE, {}, process=process) for process in (1, 2, 1, 1)]
    assert with_earlier(calls, 3, 2) == [calls[0], calls[2], calls[3]]
    assert with_earlier(calls, 1, 0) == [calls[1]]
    with pytest.raises(DumpError, match=r"only 2 calls with a backend precede call 4 in its process: lower --earlier"):
        with_earlier(calls, 3, 3)


def test_calls_within_earlier_calls_are_not_counted() -> None:
    calls = [recorded_call(function, {}) for function in (DECODE, "xqa", DECODE, "xqa")]
    assert with_earlier(calls, 2, 1, lambda call: call.function == DECODE) == [calls[0], calls[2]]
    with pytest.raises(DumpError, match="only 1 calls with a backend precede call 3"):
        with_earlier(calls, 2, 2, lambda call: call.function == DECODE)
