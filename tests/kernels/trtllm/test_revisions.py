"""The revisions: each fails where its report says so, and nowhere else."""

from collections.abc import Callable

import msgspec
import pytest
from repetition import examples
from small_cases import HEADS, LATENTS, drawn, lighter, run, step

from attnfuzz.harness.backends.registry import fixed
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.kernels.trtllm.prefill import chunk_prefixes
from attnfuzz.reference.case import Case, Launch, Mode, Outputs, Step
from attnfuzz.reference.relation import Relation

TEN_OF_TWELVE = step(Mode.DRAFT_EXTEND_V2, *((4, 6 + slot) for slot in range(10)), stride=4, rows=12)
TWELVE_OF_TWELVE = step(Mode.DRAFT_EXTEND_V2, *((4, 6 + slot) for slot in range(12)), stride=4, rows=12)


def heads(*steps: Step) -> Case:
    return Case(backend="trtllm_mha", geometry=HEADS, steps=steps)


def latents(*steps: Step, **fields: object) -> Case:
    made = Case(backend="trtllm_mla", geometry=LATENTS, steps=steps, chunk_capacity=8)
    return msgspec.structs.replace(made, **fields)


def accepting(*lengths: tuple[int, int], rows: int) -> Case:
    capture = step(Mode.DRAFT_EXTEND, stride=4, rows=rows, launch=Launch.CAPTURE)
    return latents(capture, step(Mode.DRAFT_EXTEND, *lengths, stride=4, rows=rows, launch=Launch.REPLAY))


def kinds(verdict: Verdict) -> set[tuple[Kind, str]]:
    assert verdict.unsupported is None
    return {(observation.kind, observation.place) for observation in verdict.failures}


@pytest.mark.parametrize(
    ("revision", "kernel"),
    [
        ("trtllm_mha@21649-before", "trtllm_batch_context_with_kv_cache"),
        ("trtllm_mha@24566", "trtllm_batch_decode_with_kv_cache"),
    ],
)
def test_a_draft_extend_padded_after_planning_faults(runner: Runner, revision: str, kernel: str) -> None:
    case = heads(TEN_OF_TWELVE)
    (fault,) = runner.verdict(case, revision).failures
    assert (fault.kind, fault.kernel, fault.mode) == (Kind.ILLEGAL_ACCESS, kernel, "draft_extend_v2")
    assert fault.place in {"seq_lens", "cum_seq_lens_q", "block_tables", "k_cache"}
    assert not runner.verdict(case).failures
    assert not runner.verdict(heads(TWELVE_OF_TWELVE), revision).failures


@pytest.mark.parametrize("revision", ["trtllm_mha@21649-before", "trtllm_mha@24566"])
def test_padding_before_planning_is_safe_in_graphs(revision: str) -> None:
    capture = step(Mode.DRAFT_EXTEND_V2, stride=4, rows=12, launch=Launch.CAPTURE)
    replay = msgspec.structs.replace(TEN_OF_TWELVE, launch=Launch.REPLAY)
    assert not run(heads(capture, replay), revision).failures


def test_a_replay_of_fewer_accepted_tokens_than_captured_loses_keys() -> None:
    case = accepting((2, 9), (1, 14), rows=2)
    assert kinds(run(case, "trtllm_mla@21987-before")) >= {(Kind.OUTPUT_MISMATCH, "out"), (Kind.LSE_MISMATCH, "lse")}
    assert not run(case).failures


@pytest.mark.slow
def test_a_replay_of_fewer_accepted_tokens_makes_padded_rows_nan() -> None:
    case = accepting((1, 9), rows=2)
    assert (Kind.NOT_FINITE, "padded rows") in kinds(run(case, "trtllm_mla@21987-before"))
    assert not run(case).failures


def test_a_replay_in_which_one_request_accepted_all_was_right_before() -> None:
    assert not run(accepting((4, 9), (1, 14), rows=4), "trtllm_mla@21987-before").failures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outputs", "kind"), [(Outputs.POISONED, Kind.UNWRITTEN), (Outputs.STALE, Kind.OUTPUT_MISMATCH)]
)
def test_a_chunk_without_keys_mixes_in_the_old_contents_of_the_buffer(outputs: Outputs, kind: Kind) -> None:
    case = latents(step(Mode.CHUNKED_PREFILL, (2, 5), (3, 12)), outputs=outputs)
    assert (kind, "out") in kinds(run(case, "trtllm_mla@22688-before"))
    assert not run(case).failures


def test_one_prompt_or_equal_ones_were_right_before() -> None:
    for lengths in [((2, 25),), ((2, 14), (3, 15))]:
        assert not run(latents(step(Mode.CHUNKED_PREFILL, *lengths)), "trtllm_mla@22688-before").failures


def padded_after_planning(case: Case) -> bool:
    # The related run of such a case is padded, or what a graph padded runs eagerly in it.
    if case.relation in (Relation.PADDING_ENLARGED, Relation.REPLAY_AS_EAGER):
        return any(step.mode is Mode.DRAFT_EXTEND_V2 for step in case.steps)
    return any(
        step.mode is Mode.DRAFT_EXTEND_V2 and step.launch is Launch.EAGER and step.padded_batch > len(step.requests)
        for step in case.steps
    )


def accepts_less_than_captured(case: Case) -> bool:
    return any(
        step.mode is Mode.DRAFT_EXTEND
        and step.launch is Launch.REPLAY
        and step.requests
        and max(request.q_len for request in step.requests) < step.tokens_per_request
        for step in case.steps
    )


def has_chunk_without_keys(case: Case) -> bool:
    return any(
        chunk.has_zero_kv
        for step in case.steps
        if not step.mode.speculative
        for chunk in chunk_prefixes([request.kv_len - request.q_len for request in step.requests], case.chunk_capacity)
    )


@pytest.mark.slow
@examples(60, 150)
@pytest.mark.parametrize(
    ("revision", "reported"),
    [
        ("trtllm_mha@21649-before", padded_after_planning),
        ("trtllm_mha@24566", padded_after_planning),
        ("trtllm_mla@21987-before", accepts_less_than_captured),
        ("trtllm_mla@22688-before", has_chunk_without_keys),
    ],
)
def test_drawn_cases_fail_only_where_the_report_says(
    runner: Runner, revision: str, reported: Callable[[Case], bool], count: int
) -> None:
    failed = [case for case in lighter(drawn(fixed(revision), count)) if runner.verdict(case, revision).failures]
    assert failed
    assert all(reported(case) for case in failed)
