"""Draft decodes on the engines of releases: right ones pass, and mistakes planted in a copy of one are found."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from engine_cases import ENGINES, case, decode, draft, extend, on_engine, verify
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case, Launch, Mode, PageOrder, Step

pytestmark = pytest.mark.vllm

READ = ("0.26.0", "0.29.0", "0.31.0", "0.33.0")
PLANTED_IN = "0.33.0"

DRAFTING = tuple(kind for kind in ENGINES if kind not in ("engine", "engine_cpu"))
"""The other kinds with a draft model."""

CAPTURE = Step(mode=Mode.TARGET_VERIFY, requests=(), padded_tokens=8, tokens_per_request=4, launch=Launch.CAPTURE)
REPLAY = replace(verify((0, 4, 24), (1, 4, 9)), launch=Launch.REPLAY)

CASES = {
    "prompts": case(draft((0, 2, 42), (1, 2, 3)), decode((0, 1, 45))),
    "drafts that are accepted, in part or as a whole": case(
        verify((0, 4, 40), (1, 4, 17)), draft((1, 2, 16), (0, 2, 41)), verify((0, 4, 44), (1, 4, 20)), draft((0, 2, 44))
    ),
    "drafts behind the end of a block": case(verify((0, 4, 16)), verify((0, 4, 20)), draft((0, 2, 22))),
    "a prefix that was computed for another request": case(
        extend((0, 20, 20), (1, 5, 37)), draft((0, 2, 23), (1, 2, 40))
    ),
    "blocks of requests with different next tokens": case(
        draft((0, 2, 18)), extend((1, 34, 34)), draft((0, 2, 19), (1, 2, 37)), order=PageOrder.SHARED_PREFIX
    ),
    "requests that wait or are preempted": case(
        draft((0, 2, 34), (1, 2, 47)), draft((0, 2, 36), (1, 2, 49)), shortage=5
    ),
    "a graph": case(CAPTURE, REPLAY, draft((0, 2, 24))),
}


def on(
    name: str, each: Case, seed: int = 1, *, kind: str = "engine", window: int = -1, asynchronous: bool = False
) -> Case:
    """The case on an engine whose requests go on or break off by `seed`; none with these runs dummy batches."""
    serving = replace(each.serving, seed=seed, asynchronous=asynchronous)
    return on_engine(name, kind, replace(each, serving=serving), window=window)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", READ)
def test_an_engine_with_a_draft_model_passes(version: str, asynchronous: bool, passes: Callable[..., Verdict]) -> None:
    for each in CASES.values():
        for window in (-1, 7):
            for seed in (1, 2):
                verdict = passes(on(f"vllm=={version}", each, seed, window=window, asynchronous=asynchronous))
                assert verdict.rows


@pytest.mark.parametrize("kind", DRAFTING)
def test_an_engine_with_a_draft_model_passes_above_other_backends(kind: str, runner: Runner) -> None:
    for each, asynchronous in product(CASES.values(), (False, True)):
        verdict = runner.verdict(on(f"vllm=={PLANTED_IN}", each, kind=kind, asynchronous=asynchronous))
        assert (verdict.unsupported, verdict.failures) == (None, ())
        assert verdict.rows


def test_dummy_drafts_of_an_idle_engine_are_written(runner: Runner) -> None:
    failures = runner.verdict(on(f"vllm=={READ[-1]}", CASES["prompts"], seed=4)).failures
    assert {each.kind for each in failures} == {Kind.STRAY_WRITE}


@pytest.mark.parametrize("version", READ)
def test_a_draft_model_gets_another_token_than_the_next_one_at_the_end_of_a_chunk(version: str, runner: Runner) -> None:
    chunked = replace(CASES["prompts"], serving=replace(CASES["prompts"].serving, budget=17))
    failures = runner.verdict(on(f"vllm=={version}", chunked)).failures
    assert {(each.kind, each.place) for each in failures} == {
        (Kind.WRITE_MISMATCH, f"draft_{each}_cache") for each in ("key", "value")
    }


@pytest.mark.parametrize("version", READ)
def test_blocks_of_two_requests_are_joined_without_their_next_token_before_0_33(version: str, runner: Runner) -> None:
    together = case(draft((1, 2, 20), (0, 2, 36), (2, 2, 52)), order=PageOrder.SHARED_PREFIX)
    failures = runner.verdict(on(f"vllm=={version}", together)).failures
    assert {each.kind for each in failures} == ({Kind.OUTPUT_MISMATCH} if version != PLANTED_IN else set())


_SCHEDULER = Path("vllm/v1/core/sched/scheduler.py")
_ATTENTION = Path("vllm/v1/attention/backends/flashinfer.py")
_PROPOSER, _KERNELS = Path("vllm/v1/spec_decode/llm_base_proposer.py"), Path("vllm/v1/spec_decode/utils.py")
_HASHES = Path("vllm/v1/core/kv_cache_utils.py")

_HAND_OVER = """    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        for req_id, spec_token_ids in zip(
            draft_token_ids.req_ids,
            draft_token_ids.draft_token_ids,
"""

PLANTED = {
    "a length that is off by one in a verify": (
        _ATTENTION,
        "                seq_lens_decode = seq_lens[:num_decodes]\n",
        "                seq_lens_decode = seq_lens[:num_decodes] - int(num_decode_tokens > num_decodes)\n",
        "drafts that are accepted, in part or as a whole",
        {Kind.OUTPUT_MISMATCH},
    ),
    "a length that is not advanced between decodes": (
        _KERNELS,
        "    tl.store(seq_lens_ptr + req_idx, new_seq_len)",
        "    pass",
        "prompts",
        {Kind.OUTPUT_MISMATCH},
    ),
    "rejected drafts that count as keys": (
        _PROPOSER,
        "            common_attn_metadata.seq_lens -= num_rejected_tokens_gpu",
        "            pass",
        "drafts that are accepted, in part or as a whole",
        {Kind.OUTPUT_MISMATCH, Kind.NOT_FINITE},
    ),
    "a block whose hash is without the next token": (
        _HASHES,
        "extra_keys = (extra_keys, request.all_token_ids[end_token_idx])",
        "extra_keys = (extra_keys, 0)",
        "blocks of requests with different next tokens",
        {Kind.OUTPUT_MISMATCH},
    ),
    "drafts without blocks": (
        _SCHEDULER,
        "                        num_lookahead_tokens=self.num_lookahead_tokens,\n",
        "                        num_lookahead_tokens=0,\n",
        "drafts behind the end of a block",
        {Kind.RAISED},
    ),
    "drafts of another request": (
        _SCHEDULER,
        _HAND_OVER,
        _HAND_OVER.replace("draft_token_ids.draft_token_ids", "draft_token_ids.draft_token_ids[::-1]"),
        "drafts that are accepted, in part or as a whole",
        {Kind.RAISED},
    ),
}
"""Mistakes by their names: the file, the lines and what replaces them, the case that shows it, and the kinds seen."""


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, runner: Runner, plant: Callable[..., str]) -> None:
    place, right, wrong, shown_by, kinds = PLANTED[mistake]
    failures = runner.verdict(on(plant(PLANTED_IN, place, right, wrong), CASES[shown_by])).failures
    assert failures
    assert {each.kind for each in failures} <= kinds


_RUNNER, _ASYNCHRONOUS = Path("vllm/v1/worker/gpu_model_runner.py"), Path("vllm/v1/core/sched/async_scheduler.py")

PLANTED_IN_FLIGHT = {
    "drafts in flight that count as accepted": (
        _RUNNER,
        "            and self.valid_sampled_token_count_gpu is not None\n            and prev_req_id_to_index\n",
        "            and False\n",
    ),
    "drafts that do not reach the next forward": (
        _RUNNER,
        "        if self._draft_token_ids is None or not spec_flattened_indices:\n",
        "        if True:\n",
    ),
    "drafts in flight without a place": (_ASYNCHRONOUS, " + cur_num_spec_tokens\n", "\n"),
}
"""Mistakes of an asynchronous server by their names: the file, the lines and what replaces them."""


@pytest.mark.parametrize("mistake", PLANTED_IN_FLIGHT)
def test_a_mistake_planted_in_an_asynchronous_server_is_found(
    mistake: str, runner: Runner, plant: Callable[..., str]
) -> None:
    tree = plant(PLANTED_IN, *PLANTED_IN_FLIGHT[mistake])
    shown_by = CASES["drafts that are accepted, in part or as a whole"]
    assert runner.verdict(on(tree, shown_by)).failures == ()
    assert runner.verdict(on(tree, shown_by, asynchronous=True)).failures


@pytest.mark.parametrize("kind", ["engine", "engine_mla"])
def test_the_workspace_has_room_for_drafts_that_a_decode_verifies(kind: str, passes: Callable[..., Verdict]) -> None:
    served = on_engine(f"vllm=={PLANTED_IN}", kind, case(draft((0, 1, 2)), decode((0, 1, 400))))
    # Splits take the most space with one query head; this seed has drafts in the last forward.
    one_head = replace(served, geometry=replace(served.geometry, q_heads=1, kv_heads=1))
    passes(replace(one_head, serving=replace(served.serving, seed=186)))
