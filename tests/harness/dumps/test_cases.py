"""A recorded call becomes a case that ends as the call did."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_cases import calls_of, chunked_case, decode_case, draft_extend_case
from hypothesis import HealthCheck, given, seed, settings
from msgspec.structs import replace
from recorded_calls import MemoryTensor, as_recorded, recorded_call

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.dumps.case_of_call import make_case
from attnfuzz.harness.dumps.contents import Contents
from attnfuzz.harness.dumps.recorded import RecordedCall
from attnfuzz.harness.dumps.understood import breaches_of
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import FAULTS, Kind, Verdict
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallCase, View
from attnfuzz.reference.case import Case, Guard
from attnfuzz.strategies.cases import cases

DECODE = "trtllm_batch_decode_with_kv_cache"
PAGE = 4


def failures(verdict: Verdict) -> list[tuple[Kind, str]]:
    """The failures without the places of faults: which one of several threads faults first is chance."""
    return [(each.kind, "" if each.kind in FAULTS else each.place) for each in verdict.failures]


def decode_arguments(**changes: Any) -> dict[str, Any]:
    """Three requests of 6, 3 and 8 keys on a pool of nine pages, in which pages 2, 4, 5, 7 and 8 are theirs."""
    generator = torch.Generator().manual_seed(5)
    arguments = {
        "query": torch.randn(3, 4, 8, generator=generator),
        "kv_cache": tuple(torch.randn(9, 2, PAGE, 8, generator=generator) for _ in range(2)),
        "workspace_buffer": torch.zeros(1 << 16, dtype=torch.uint8),
        "block_tables": torch.tensor([[7, 2], [5, 0], [8, 4]], dtype=torch.int32),
        "seq_lens": torch.tensor([6, 3, 8], dtype=torch.int32),
        "max_seq_len": 8,
        "bmm1_scale": 0.35,
    }
    return arguments | changes


def decode(**changes: Any) -> RecordedCall:
    return recorded_call(DECODE, decode_arguments(**changes))


def table(case: CallCase) -> list[list[int]]:
    rows: list[list[int]] = literal_arguments(case, 0)["block_tables"].tolist()
    return rows


def said(case: CallCase, words: str) -> bool:
    return any(words in note for note in case.notes)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla"])
def test_recorded_calls_of_a_backend_pass_again(runner: Runner, backend: str) -> None:
    @seed(7)
    @settings(max_examples=4, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(resolve(backend).capability, backend))
    def find(case: Case) -> None:
        verdict, calls = runner.trace(case)
        assert failures(verdict) == []
        if calls is not None and calls.calls[0].op in ENTRY_POINTS:
            made = make_case(as_recorded(calls, 0), backend=backend)
            assert failures(runner.verdict(made)) == []

    find()


@pytest.mark.parametrize("contents", list(Contents))
def test_drawn_contents_pass_as_those_that_were_recorded(runner: Runner, contents: Contents) -> None:
    case = make_case(as_recorded(calls_of(runner, decode_case("trtllm_mha"))), contents=contents)
    assert case.answer is not None
    assert failures(runner.verdict(case)) == []


@pytest.mark.parametrize("revision", ["trtllm_mha@21649-before", "trtllm_mha@24566"])
def test_a_call_that_faulted_faults_again(runner: Runner, revision: str) -> None:
    verdict, calls = runner.trace(draft_extend_case(revision))
    assert calls is not None
    assert Kind.ILLEGAL_ACCESS in {each.kind for each in verdict.failures}
    made = make_case(as_recorded(calls))
    assert failures(runner.verdict(made)) == failures(runner.verdict(calls)) == failures(verdict)
    assert made.answer is None
    assert said(made, "the call breaks a precondition")


def test_a_fault_is_seen_at_the_argument_at_which_it_was(runner: Runner) -> None:
    calls = calls_of(runner, draft_extend_case("trtllm_mha@21649-before"))
    (failure,) = runner.verdict(make_case(as_recorded(calls))).failures
    assert (failure.kind, failure.place) == (Kind.ILLEGAL_ACCESS, "cum_seq_lens_q")


@pytest.mark.parametrize(("outside", "guard"), [(9, Guard.RIGHT), (11, Guard.RIGHT), (-1, Guard.LEFT)])
def test_a_page_id_outside_of_the_pool_leads_out_of_it(runner: Runner, outside: int, guard: Guard) -> None:
    tables = torch.tensor([[7, 2], [5, 0], [8, outside]], dtype=torch.int32)
    case = make_case(decode(block_tables=tables), contents=Contents.SEED)
    # Pages 2, 5, 7 and 8 are kept, and a spare one for page 0, which is past the end of its request.
    assert table(case)[2][1] == (outside if outside < 0 else outside - 9 + 5)
    assert case.guard is guard
    assert [failure.kind for failure in runner.verdict(case).failures] == [Kind.ILLEGAL_ACCESS]


@pytest.mark.parametrize("beyond", [0, 9, -1])
def test_a_page_id_past_the_end_of_a_request_is_harmless(runner: Runner, beyond: int) -> None:
    tables = torch.tensor([[7, 2], [5, beyond], [8, 4]], dtype=torch.int32)
    assert failures(runner.verdict(make_case(decode(block_tables=tables)))) == []


def test_the_pool_is_cut_to_pages_that_lengths_refer_to() -> None:
    call = decode()
    case = make_case(call)
    assert table(case) == [[3, 0], [2, 5], [4, 1]]
    arguments = literal_arguments(case, 0)
    for cut, pool in zip(arguments["kv_cache"], decode_arguments()["kv_cache"], strict=True):
        assert cut.shape == (6, 2, PAGE, 8)
        for new, old in enumerate((2, 4, 5, 7, 8)):
            whole = 3 if old == 5 else 2 if old == 2 else PAGE
            assert torch.equal(cut[new, :, :whole], pool[old, :, :whole])
            assert cut[new, :, whole:].isnan().all()
        assert cut[5].isnan().all()
    kept = "kv_cache had 9 pages of 4 slots, 4,608 bytes; 5 are kept, renumbered in the same order: 2, 4 to 5, 7 to 8."
    assert kept in case.notes


@pytest.mark.parametrize("contents", list(Contents))
def test_only_pages_that_are_kept_are_read(contents: Contents) -> None:
    call = decode()
    make_case(call, contents=contents)
    floats = [call.arguments["query"], *_members(call.arguments["kv_cache"])]
    reads = [each.reads for each in floats if isinstance(each, MemoryTensor)]
    expected = {Contents.VALUES: [[3], [5], [5]], Contents.STATISTICS: [[3], [5], [5]], Contents.SEED: [[], [], []]}
    assert reads == expected[contents]


def _members(value: Any) -> tuple[Any, ...]:
    assert isinstance(value, tuple)
    return value


def test_statistics_are_those_of_the_tokens_that_are_kept() -> None:
    key, value = decode_arguments()["kv_cache"]
    # Poison in pages that nobody needs must not count.
    far = torch.full_like(key, 100.0)
    far[[2, 4, 5, 7, 8]] = key[[2, 4, 5, 7, 8]] * 0.5 + 3.0
    far[2, :, 2:], far[5, :, 3:] = 100.0, 100.0
    case = make_case(decode(kv_cache=(far, value)), contents=Contents.STATISTICS, seed=40)
    drawn = {buffer.name: buffer.drawn for buffer in case.buffers if buffer.drawn is not None}
    assert {name: each.seed for name, each in drawn.items()} == {"k_cache": 40, "v_cache": 41, "query": 42}
    assert drawn["k_cache"].mean == pytest.approx(3.0, abs=0.1)
    assert drawn["k_cache"].std == pytest.approx(0.5, abs=0.1)


def test_drawn_contents_follow_from_the_seed() -> None:
    first, again, other = (make_case(decode(), contents=Contents.SEED, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_the_answer_is_that_of_the_call(runner: Runner) -> None:
    case = make_case(decode(bmm2_scale=0.5))
    assert failures(runner.verdict(case)) == []
    call = case.calls[0]
    wrong = replace(case, calls=(replace(call, arguments=call.arguments | {"bmm2_scale": 0.6}),))
    assert (Kind.OUTPUT_MISMATCH, "out") in failures(runner.verdict(wrong))


def test_sinks_in_a_list_count_in_the_answer(runner: Runner) -> None:
    case = make_case(decode(sinks=(torch.full((4,), 1.5),)))
    assert case.answer is not None
    assert case.answer.sinks is not None
    assert failures(runner.verdict(case)) == []


def test_requests_with_numbers_that_are_none_are_not_judged(runner: Runner) -> None:
    key, value = decode_arguments()["kv_cache"]
    key[5, 0, 1, 3] = torch.nan
    case = make_case(decode(kv_cache=(key, value)))
    assert said(case, "not finite (1) are not judged")
    assert failures(runner.verdict(case)) == []


def test_results_are_allocated_and_guarded_if_they_were_not_passed() -> None:
    case = make_case(decode(out_dtype=torch.float32, out=None))
    call = case.calls[0].arguments
    assert (shape(call["out"]), shape(call["lse"]), call["return_lse"]) == ((3, 4, 8), (3, 4), True)
    assert said(case, "Allocated for the call, so that it is guarded and judged: out and lse.")
    given = make_case(decode(out=torch.ones(3, 4, 8), lse=torch.ones(3, 4), return_lse=True))
    assert not said(given, "Allocated")
    for made in (case, given):
        held = {buffer.name: (buffer.bits, buffer.values) for buffer in made.buffers if buffer.name in ("out", "lse")}
        assert held == {"out": (None, None), "lse": (None, None)}


def shape(value: object) -> tuple[int, ...]:
    assert isinstance(value, View)
    return value.shape


def test_a_call_with_more_rows_than_lengths_is_judged_by_its_accesses_alone(runner: Runner) -> None:
    call = decode(query=torch.randn(5, 4, 8))
    assert "query" in breaches_of(call)[0].arguments
    case = make_case(call)
    assert case.answer is None
    assert [failure.kind for failure in runner.verdict(case).failures] == [Kind.ILLEGAL_ACCESS]


def test_a_workspace_is_cut_to_the_bytes_that_the_kernel_uses() -> None:
    case = make_case(decode())
    assert said(case, "workspace_buffer had 65,536 bytes, and began with zeros; it is now 8,192 bytes of zeros")
    dirty = torch.full((1 << 14,), 3.0)
    assert said(make_case(decode(workspace_buffer=dirty)), "and began not only with zeros")
    exact = torch.arange(8192).to(torch.uint8)
    kept = literal_arguments(make_case(decode(workspace_buffer=exact)), 0)["workspace_buffer"]
    assert torch.equal(kept, exact)


def test_a_workspace_of_zeros_that_is_kept_whole_takes_no_room_in_the_case(tmp_path: Path) -> None:
    """On a GPU nobody knows how much of it is used."""
    call = decode(workspace_buffer=torch.zeros(64 << 20, dtype=torch.uint8))
    case = make_case(call, backend="hopper:trtllm_mha")
    (space,) = (buffer for buffer in case.buffers if buffer.name == "workspace_buffer")
    assert (space.size, space.zeros, space.bits) == (64 << 20, True, None)
    case_file.save(tmp_path / "case.json", case)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 50_000
    assert case_file.load(tmp_path / "case.json") == case


def test_a_scale_in_a_tensor_becomes_a_number() -> None:
    case = make_case(decode(bmm1_scale=torch.tensor([0.25])))
    assert case.calls[0].arguments["bmm1_scale"] == 0.25
    assert said(case, "bmm1_scale was a tensor of one number")


@pytest.mark.parametrize("scale", [math.nan, torch.tensor(-math.inf)])
def test_a_scale_without_value_is_kept_and_is_the_callers_mistake(scale: float | torch.Tensor, runner: Runner) -> None:
    case = make_case(decode(bmm1_scale=scale))
    again = case_file.decode(case_file.encode(case))
    assert isinstance(again, CallCase)
    assert str(literal_arguments(again, 0)["bmm1_scale"]) == str(float(scale))
    (breach,) = ENTRY_POINTS[DECODE].breaches(literal_arguments(again, 0))
    assert breach.text == f"bmm1_scale is {float(scale)}: no row is a number"
    assert failures(runner.verdict(again)) == []


def test_each_part_of_a_chunked_prefill_passes_alone(runner: Runner) -> None:
    calls = calls_of(runner, chunked_case("trtllm_mla"))
    ops = [call.op for call in calls.calls]
    assert {"trtllm_ragged_attention_deepseek", "merge_state_in_place", "fixup_zero_kv_rows"} <= set(ops)
    answers: dict[str, set[bool]] = {op: set() for op in ops}
    for index, op in enumerate(ops[:4]):
        case = make_case(as_recorded(calls, index))
        answers[op].add(case.answer is not None)
        assert failures(runner.verdict(case)) == []
    # Attention to a chunk of the prefix is not causal.
    assert answers["trtllm_ragged_attention_deepseek"] == {True, False}
    assert answers["merge_state_in_place"] == {False}


def test_rows_without_keys_that_a_kernel_leaves_alone_are_not_judged(runner: Runner) -> None:
    cumulative = torch.tensor([0, 1, 2], dtype=torch.int32)
    arguments = {
        "query": torch.randn(2, 4, 8),
        "key": torch.randn(3, 4, 8),
        "value": torch.randn(3, 4, 8),
        "workspace_buffer": torch.zeros(64, dtype=torch.uint8),
        "seq_lens": torch.tensor([0, 3], dtype=torch.int32),
        "max_q_len": 1,
        "max_kv_len": 3,
        "bmm1_scale": 0.35,
        "bmm2_scale": 1.0,
        "o_sf_scale": 1.0,
        "batch_size": 2,
        "window_left": -1,
        "cum_seq_lens_q": cumulative,
        "cum_seq_lens_kv": torch.tensor([0, 0, 3], dtype=torch.int32),
        "enable_pdl": False,
        "is_causal": False,
        "return_lse": True,
    }
    case = make_case(recorded_call("trtllm_ragged_attention_deepseek", arguments))
    assert said(case, "Rows of requests without keys (0) are not judged")
    assert case.answer is not None
    assert [expected.first_row for expected in case.answer.requests] == [1]
    assert failures(runner.verdict(case)) == []


def test_calls_in_sequence_share_a_workspace_that_is_cut(runner: Runner) -> None:
    case = make_case(decode(), decode(seq_lens=torch.tensor([1, 0, 5], dtype=torch.int32)))
    assert [call.op for call in case.calls] == [DECODE, DECODE]
    spaces = {view.buffer for call in case.calls if isinstance(view := call.arguments["workspace_buffer"], View)}
    assert spaces == {"call_0_workspace_buffer"}
    assert case.answer is not None
    assert case.answer.out.buffer == "call_1_out"
    assert failures(runner.verdict(case)) == []


def test_a_case_for_another_backend_is_made_for_it(runner: Runner) -> None:
    verdict, calls = runner.trace(decode_case("trtllm_mha"))
    assert failures(verdict) == []
    assert calls is not None
    assert make_case(as_recorded(calls)).backend == "trtllm_mha"
    assert make_case(as_recorded(calls), backend="trtllm_mha@24566").backend == "trtllm_mha@24566"
