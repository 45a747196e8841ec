"""Cases made of calls become small, stay right where they were right, and keep the failure that they had."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from harness_cases import calls_of, chunked_case, draft_extend_case
from msgspec.structs import replace
from repetition import examples
from small_cases import HEADS, LATENTS, drawn, in_memory, narrowest, step

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.reduce import reduce_calls
from attnfuzz.harness.reduce.call_axes import drop_requests
from attnfuzz.harness.reduce.meaning import Meaning, breached
from attnfuzz.harness.reduce.search import CALL_EDITS
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference import case_file
from attnfuzz.reference.call_validity import validate_calls
from attnfuzz.reference.calls import CallCase, View
from attnfuzz.reference.case import Case, Mask, Mode, Pages, Tombstone
from attnfuzz.reference.validity import ImpossibleCase

MALFORMED = Path(__file__).parents[1] / "short_seq_lens.json"
STRIDES = next(bug for bug in load_bugs() if bug.name == "sglang-21987")


def alike(runner: Runner, calls: CallCase) -> Callable[[CallCase], bool]:
    """Whether a case fails as these calls do."""
    wanted = Fingerprint.of(calls.backend, runner.verdict(calls).failures[0])
    return lambda case: wanted.among(runner.verdict(case).failures) is not None


def sizes(calls: CallCase, name: str) -> tuple[int, ...]:
    view = calls.calls[0].arguments[name]
    assert isinstance(view, View)
    return view.shape


def pool_of(calls: CallCase) -> int:
    """Pages in the pool."""
    return Meaning(calls).size("pages")


@pytest.mark.slow
def test_a_batch_that_is_too_large_for_its_metadata_becomes_one_of_two(runner: Runner) -> None:
    calls = calls_of(runner, draft_extend_case("trtllm_mha@24566"))
    small = reduce_calls(calls, alike(runner, calls))
    assert sizes(small, "query") == (2, 1, 8)
    assert sizes(small, "seq_lens") == (1,)
    assert sizes(small, "block_tables") == (1, 1)
    assert breached(small) == breached(calls)
    assert small.calls[0].arguments.get("batch_size", 2) == 2
    assert len(case_file.encode(small)) < 4000


def test_merging_an_empty_chunk_takes_one_request_and_one_chunk(runner: Runner) -> None:
    calls = calls_of(runner, chunked_case("trtllm_mla@22688-before"))
    assert len(calls.calls) > 3
    small = reduce_calls(calls, alike(runner, calls))
    assert [call.op for call in small.calls] == [
        "trtllm_ragged_attention_deepseek",
        "trtllm_ragged_attention_deepseek",
        "merge_state_in_place",
    ]
    assert sizes(small, "query") == (1, 1, 8)
    assert sizes(small, "seq_lens") == (1,)
    assert small.answer is not None
    assert [expected.key.shape for expected in small.answer.requests] == [(1, 1, 8)]


@pytest.mark.slow
def test_wrong_strides_take_one_request_and_one_page(runner: Runner) -> None:
    case = STRIDES.case_before
    assert isinstance(case, Case)
    calls = calls_of(runner, replace(case, geometry=LATENTS))
    small = reduce_calls(calls, alike(runner, calls))
    assert sizes(small, "query")[0] == sizes(small, "kv_cache")[0] == 1
    assert sizes(small, "query")[-1] == 16
    assert small.answer is not None
    assert len(small.answer.requests) == 1


def test_malformed_calls_become_small_and_stay_malformed(runner: Runner) -> None:
    calls = case_file.load(MALFORMED)
    assert isinstance(calls, CallCase)
    small = reduce_calls(calls, alike(runner, calls))
    failure = runner.verdict(small).failures[0]
    assert (failure.kind, failure.place) == (Kind.ILLEGAL_ACCESS, "seq_lens")
    assert sizes(small, "seq_lens") == (1,)
    assert sizes(small, "query") == (1, 1, 8)
    assert sizes(small, "kv_cache")[0] == 1
    assert breached(small) == breached(calls)


@pytest.mark.slow
def test_a_kernel_that_is_wrong_stays_wrong_in_its_answer(runner: Runner) -> None:
    case = Case(backend="trtllm_mha+k_scale_twice", geometry=HEADS, steps=(step(Mode.DECODE, (1, 9), (1, 3), (1, 14)),))
    case = replace(case, scales=replace(case.scales, k=1.7))
    calls = calls_of(runner, case)
    small = reduce_calls(calls, alike(runner, calls))
    assert small.answer is not None
    assert len(small.answer.requests) == 1
    assert sizes(small, "query") == (1, 1, 8)


@pytest.mark.slow
def test_a_page_id_outside_stays_outside(runner: Runner) -> None:
    calls = calls_of(
        runner, Case(backend="trtllm_mha", geometry=HEADS, steps=(step(Mode.DECODE, (1, 9), (1, 3), (1, 14)),))
    )
    table = next(buffer for buffer in calls.buffers if buffer.name == "block_tables")
    assert table.values is not None
    wild = replace(table, values=(*table.values[:-1], pool_of(calls) + 30))
    outside = replace(calls, buffers=tuple(wild if buffer is table else buffer for buffer in calls.buffers))
    small = reduce_calls(outside, alike(runner, outside))
    assert sizes(small, "seq_lens") == (1,)
    (ids,) = [buffer.values for buffer in small.buffers if buffer.name == "block_tables"]
    assert ids is not None
    assert max(ids) >= pool_of(small)
    assert breached(small) == breached(outside)


def test_no_other_fault_takes_the_place_of_the_first(runner: Runner) -> None:
    longer = replace(draft_extend_case("trtllm_mha@24566"), geometry=replace(HEADS, page_size=64), max_len_slack=1000)
    calls = calls_of(runner, longer)
    small = reduce_calls(calls, lambda _: True)
    assert breached(small) == breached(calls)
    assert sizes(small, "workspace_buffer") < sizes(calls, "workspace_buffer")
    assert runner.verdict(small).failures


@examples(2, 6)
@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla", "torch_sdpa"])
def test_edits_of_right_calls_are_right(runner: Runner, backend: str, count: int) -> None:
    tried = 0
    for case in narrowest(in_memory(drawn(backend, 7)), count):
        verdict, calls = runner.trace(case)
        if calls is None or verdict.failures or sum(buffer.size for buffer in calls.buffers) > 100_000:
            continue
        tried += right_edits(runner, calls)
    assert tried >= 10


@pytest.mark.slow
def test_edits_of_calls_under_masks_take_requests_with_their_masks(runner: Runner) -> None:
    verify = step(Mode.TARGET_VERIFY, (3, 9), (3, 0), (3, 14), stride=3)
    calls = calls_of(runner, Case(backend="trtllm_mha_masked", geometry=HEADS, steps=(verify,), mask=Mask.CUSTOM))
    (call,) = calls.calls
    assert call.op == "trtllm_batch_context_with_custom_mask"
    assert not breached(calls)
    assert right_edits(runner, calls) > 10
    fewer = list(drop_requests(calls))
    assert not any(map(breached, fewer))
    starts = [tuple(literal_arguments(each, 0)["mask_indptr"].tolist()) for each in (calls, *fewer)]
    # Masks of 3 * 9, no and 3 * 14 bits, and two of them.
    assert starts[0] == (0, 4, 4, 10)
    assert {each for each in starts if len(each) == 3} == {(0, 4, 10), (4, 4, 10)}


@pytest.mark.slow
@pytest.mark.parametrize("tombstone", [Tombstone.NULL, Tombstone.MINUS_ONE])
def test_a_window_does_not_move_back_to_pages_that_have_left_it(runner: Runner, tombstone: Tombstone) -> None:
    windowed = replace(HEADS, page_size=2, window_left=2)
    steps = (step(Mode.DECODE, (1, 13), (1, 6)),)
    case = Case(backend="trtllm_mha", geometry=windowed, steps=steps, pages=Pages(tombstone=tombstone))
    assert right_edits(runner, calls_of(runner, case)) > 10


def right_edits(runner: Runner, calls: CallCase) -> int:
    """Assert that edits of right calls, those that break no precondition, are right; count them."""
    tried = 0
    for edit in CALL_EDITS:
        candidates = list(islice(edit(calls), 12))
        for candidate in candidates[:: max(1, len(candidates) // 2)]:
            try:
                validate_calls(candidate)
            except ImpossibleCase:
                continue
            if not breached(candidate):
                tried += 1
                failures = runner.verdict(candidate).failures
                assert failures == (), (edit.__name__, calls.calls, failures)
    return tried


@pytest.mark.slow
def test_the_same_calls_become_the_same(runner: Runner) -> None:
    calls = calls_of(runner, draft_extend_case("trtllm_mha@24566"))
    fails = alike(runner, calls)
    small = reduce_calls(calls, fails)
    assert reduce_calls(calls, fails) == small
    assert reduce_calls(small, fails) == small


def test_the_budget_bounds_the_runs(runner: Runner) -> None:
    calls = calls_of(runner, draft_extend_case("trtllm_mha@24566"))
    tried: list[CallCase] = []

    def fails(candidate: CallCase) -> bool:
        tried.append(candidate)
        return True

    reduced = reduce_calls(calls, fails, budget=3)
    assert len(tried) == 3
    assert reduced == tried[-1]
