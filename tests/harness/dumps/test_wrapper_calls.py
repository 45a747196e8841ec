"""Runs of wrapper objects become calls of functions that are given the same, or are refused in a line."""

import math
from typing import Any

import pytest
import torch
from recorded_calls import recorded_call
from wrapper_lives import DECODE, DECODE_PLAN, DIM, PREFILL, PREFILL_PLAN, life, method

from attnfuzz.harness.dumps.case_of_call import importable, make_case
from attnfuzz.harness.dumps.find_calls import with_earlier
from attnfuzz.harness.dumps.recorded import DumpError, RecordedCall
from attnfuzz.harness.dumps.understood import pictured
from attnfuzz.harness.dumps.wrapper_calls import as_function, function_of
from attnfuzz.harness.sandbox.check import Runner


def sent(calls: list[RecordedCall]) -> dict[str, Any]:
    """The arguments of the function that stands for the last call."""
    return pictured(as_function(calls, calls[-1]))


@pytest.mark.slow
def test_a_decode_has_the_plan_s_pages_as_rows_and_its_keys_counted(runner: Runner) -> None:
    calls = life(DECODE, DECODE_PLAN)
    given = sent(calls)
    assert given["block_tables"].tolist() == [[5, 1], [0, 0], [3, 0]]
    assert given["seq_lens"].tolist() == [7, 0, 4]
    assert {name: given[name] for name in ("max_seq_len", "q_len_per_req", "window_left", "kv_layout")} == {
        "max_seq_len": 7,
        "q_len_per_req": 1,
        "window_left": -1,
        "kv_layout": "NHD",
    }
    assert runner.verdict(make_case(as_function(calls, calls[-1]))).failures == ()


def test_a_causal_prefill_has_its_rows_and_keys_in_sums(runner: Runner) -> None:
    calls = life(PREFILL, PREFILL_PLAN, rows=6)
    given = sent(calls)
    assert given["cum_seq_lens_q"].tolist() == [0, 3, 4, 6]
    assert given["cum_seq_lens_kv"].tolist() == [0, 7, 7, 11]
    assert (given["max_q_len"], given["max_kv_len"], given["batch_size"]) == (3, 7, 3)
    assert runner.verdict(make_case(as_function(calls, calls[-1]))).failures == ()


@pytest.mark.parametrize(
    ("plan", "run", "bmm1_scale", "bmm2_scale", "window_left"),
    [
        ({}, {}, 1 / math.sqrt(DIM), 1.0, -1),
        ({"sm_scale": 0.5, "window_left": 6}, {}, 0.5, 1.0, 6),
        ({"window_left": 6}, {"q_scale": 2.0, "k_scale": 4.0, "v_scale": 0.25, "window_left": 3}, 2.0, 0.25, 3),
        ({"sm_scale": 0.5}, {"k_scale": None}, 0.5, 1.0, -1),
    ],
)
def test_scales_and_windows_are_those_of_run_before_those_of_plan(
    plan: dict[str, Any], run: dict[str, Any], bmm1_scale: float, bmm2_scale: float, window_left: int
) -> None:
    given = sent(life(DECODE, DECODE_PLAN | plan, run))
    assert (given["bmm1_scale"], given["bmm2_scale"], given["window_left"]) == (bmm1_scale, bmm2_scale, window_left)


def test_a_run_belongs_to_the_last_plan_of_its_own_object() -> None:
    begin, plan, run = life(DECODE, DECODE_PLAN, begin={"kv_layout": "HND"})
    older = method(f"{DECODE}.plan", DECODE_PLAN | {"sm_scale": 9.0})
    another = method(f"{DECODE}.plan", DECODE_PLAN | {"sm_scale": 8.0}, self_id=8)
    given = sent([begin, older, plan, another, run])
    assert (given["bmm1_scale"], given["kv_layout"]) == (1 / math.sqrt(DIM), "HND")


def test_an_earlier_run_comes_along_across_the_plan_between(runner: Runner) -> None:
    begin, plan, run = life(DECODE, DECODE_PLAN)
    moved = DECODE_PLAN | {"indices": torch.tensor([0, 2, 4], dtype=torch.int32)}
    _, again, last = life(DECODE, moved)
    calls = [begin, plan, run, again, last]
    both = with_earlier(calls, 4, 1, lambda call: function_of(call) in importable())
    assert both == [run, last]
    tables = [pictured(as_function(calls, call))["block_tables"].tolist() for call in both]
    assert tables == [[[5, 1], [0, 0], [3, 0]], [[0, 2], [0, 0], [4, 0]]]
    case = make_case(*(as_function(calls, call) for call in both))
    assert len(case.calls) == 2
    assert runner.verdict(case).failures == ()


def test_the_note_names_the_wrapper_and_its_plan() -> None:
    calls = life(DECODE, DECODE_PLAN)
    assert as_function(calls, calls[-1]).lost[0] == (
        f"That function replaces the run of a {DECODE}, with the pages planned in {DECODE}.plan."
    )


def test_other_calls_are_unchanged() -> None:
    plain = recorded_call("xqa", {})
    begin, plan, run = life(DECODE, DECODE_PLAN)
    other = method("BatchMLAPagedAttentionWrapper.run", {})
    for call in (plain, begin, plan, other):
        assert as_function([begin, plan, run, plain, other], call) is call
        assert function_of(call) == call.function
    assert function_of(run) == "trtllm_batch_decode_with_kv_cache"


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (life(DECODE, DECODE_PLAN)[1:], f"the {DECODE}.__init__ of its object is not in the dump"),
        (life(DECODE, DECODE_PLAN)[::2], f"the {DECODE}.plan of its object is not in the dump"),
        (life(DECODE, DECODE_PLAN | {"logits_soft_cap": 30.0}), "plan has the argument logits_soft_cap"),
        (life(DECODE, DECODE_PLAN | {"pos_encoding_mode": "ALIBI"}), "plan has the argument pos_encoding_mode"),
        (life(DECODE, DECODE_PLAN, {"kv_cache_sf": torch.ones(2)}), "run has the argument kv_cache_sf"),
        (life(DECODE, DECODE_PLAN, {"k_scale": torch.ones(1)}), "k_scale is not a plain number"),
        (life(DECODE, DECODE_PLAN | {"head_dim": None}), "planned without head_dim"),
        (life(DECODE, DECODE_PLAN | {"indptr": torch.tensor([0, 2, 2, 4])}), "does not cut 3 page ids into lists"),
        (life(DECODE, DECODE_PLAN | {"indptr": torch.tensor([0, 2, 1, 3])}), "does not cut 3 page ids into lists"),
        (life(DECODE, DECODE_PLAN | {"indptr": torch.tensor([0, 3])}), "do not match its page size"),
        (life(DECODE, DECODE_PLAN | {"indices": torch.ones(3)}), "indices is not a list of integers"),
        (life(PREFILL, PREFILL_PLAN | {"causal": False}, rows=6), "is not causal"),
        (life(PREFILL, PREFILL_PLAN | {"custom_mask": torch.ones(3)}, rows=6), "plan has the argument custom_mask"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrapper_arguments_without_an_equivalent_are_refused(calls: list[RecordedCall], words: str) -> None:
    with pytest.raises(DumpError) as refused:
        as_function(calls, calls[-1])
    assert words in str(refused.value)
