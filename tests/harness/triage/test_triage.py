"""Whose fault it is: of cases whose bug is known, because it was planted or reported."""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness_cases import decode_case, draft_extend_case
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import CannotRun, Runner
from attnfuzz.harness.triage import Blame, Repetition, triage
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Guard

SHORT_SEQ_LENS = case_file.load(Path(__file__).parents[1] / "short_seq_lens.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "argument"),
    [
        ("lengths_of_whole_pages", "seq_lens"),
        ("padded_rows_point_nowhere", "block_tables"),
        ("query_rows_assumed_packed", "query"),
        ("workspace_a_word_too_small", "workspace_buffer"),
        ("v_scale_dropped", "bmm2_scale"),
        ("window_size_for_window_left", "window_left"),
        ("lengths_of_first_replay", "seq_lens"),
    ],
)
def test_a_planner_that_asks_for_the_wrong_thing_is_blamed_with_the_argument_in_which_it_does(
    runner: Runner, pinned: Callable[[str], AnyCase], defect: str, argument: str
) -> None:
    found = triage(pinned(defect), runner, repeats=2)
    assert found.fault is Blame.CALLER, found
    assert argument in found.arguments
    assert "planner" in found.conclusion


@pytest.mark.parametrize("defect", ["query_not_copied_on_replay", "last_chunk_dropped"])
def test_a_planner_is_blamed_for_a_failure_that_no_single_call_shows(
    runner: Runner, pinned: Callable[[str], AnyCase], defect: str
) -> None:
    assert triage(pinned(defect), runner, repeats=2).fault is Blame.CALLER


@pytest.mark.slow
@pytest.mark.parametrize(
    "defect",
    [
        "window_one_short",
        "last_page_read_whole",
        "query_scaled_in_place",
        "merge_in_base_e",
        "fixup_leaves_out",
        "semaphore_left_set",
    ],
)
def test_a_kernel_with_a_wrong_answer_to_its_arguments_is_blamed(
    runner: Runner, pinned: Callable[[str], AnyCase], defect: str
) -> None:
    found = triage(pinned(defect), runner, repeats=2)
    assert found.fault is Blame.KERNEL, found
    assert not found.breaches


def test_a_reported_bug_is_reported_with_the_tensor_that_is_read_and_the_batch_that_was_stated(runner: Runner) -> None:
    found = triage(draft_extend_case("trtllm_mha@21649-before"), runner, repeats=2)
    assert (found.fault, found.step, found.call) == (Blame.CALLER, 0, 0)
    assert found.failure is not None
    assert found.failure.kind is Kind.ILLEGAL_ACCESS
    assert found.sentences[0].startswith("batch_size is 3")
    assert found.sentences[1].startswith("It reads 0 bytes past the end of cum_seq_lens_q, int32 [3]")
    assert "The case passes on trtllm_mha." in found.sentences


def test_a_case_made_of_calls_has_a_caller_without_a_name(runner: Runner) -> None:
    found = triage(SHORT_SEQ_LENS, runner, repeats=2)
    assert found.fault is Blame.CALLER
    assert found.conclusion.startswith("The caller is at fault: the code that made the call")
    assert {"batch_size", "seq_lens"} <= set(found.arguments)
    assert {variant.what for variant in found.variants} == {"as given", "guard", "outputs"}


def test_a_failure_with_guards_on_the_other_side_only_is_found(runner: Runner, defective: str) -> None:
    hidden = replace(decode_case(f"{defective}:SEGFAULT"), guard=Guard.LEFT)
    assert not runner.verdict(hidden).failures
    found = triage(hidden, runner, repeats=2)
    assert found.fault is Blame.UNCLEAR
    assert found.sentences[0].startswith("The case itself passes")
    assert any(sentence.startswith("It reads 24 bytes past the end of query") for sentence in found.sentences)
    (guard,) = [variant for variant in found.variants if variant.what == "guard"]
    assert guard.outcome.kind is Kind.ILLEGAL_ACCESS


def test_a_case_that_passes_in_every_variant_blames_none(runner: Runner) -> None:
    found = triage(decode_case("trtllm_mha"), runner, repeats=2)
    assert (found.fault, found.fails, found.sentences) == (Blame.NONE, False, ())
    assert found.repetition is Repetition.DETERMINISTIC
    ways = {variant.what: variant.outcome for variant in found.variants}
    assert set(ways) == {"as given", "guard", "outputs", "workspace", "launch", "contents"}
    assert all(outcome.passes for outcome in ways.values())


def test_a_planner_that_raises_before_any_launch_is_blamed(runner: Runner, defective: str) -> None:
    found = triage(decode_case(f"{defective}:PLANNER"), runner, repeats=2)
    assert found.fault is Blame.CALLER
    assert "before any launch" in found.conclusion


def test_kernels_with_unknown_arguments_leave_the_blame_unclear(runner: Runner, defective: str) -> None:
    found = triage(decode_case(f"{defective}:WRONG_ROW"), runner, repeats=2)
    assert found.fault is Blame.UNCLEAR
    assert "attend" in found.conclusion


def test_a_dependence_on_the_process_is_distinguished_from_a_race(runner: Runner, defective: str) -> None:
    found = triage(decode_case(f"{defective}:USED_PROCESS"), runner, repeats=2)
    assert found.repetition is Repetition.HISTORY


def test_a_case_that_its_backend_rejects_can_not_be_triaged(runner: Runner, defective: str) -> None:
    with pytest.raises(CannotRun, match="there is no kernel for this"):
        triage(decode_case(f"{defective}:UNSUPPORTED"), runner, repeats=2)
