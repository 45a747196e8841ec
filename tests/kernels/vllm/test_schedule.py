"""A case's steps as a scheduler orders them: new and continued requests, with their blocks and drafts."""

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.vllm.loader import load
from attnfuzz.kernels.vllm.pool import PackedKv, VllmPool
from attnfuzz.kernels.vllm.schedule import ScheduledSteps
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

GEOMETRY = Geometry(
    q_heads=1, kv_heads=1, head_dim_qk=16, head_dim_vo=16, page_size=16, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16
)
DRAFTS = 3

Orders = Callable[..., tuple[list[Any], Any]]


def prefill(q_len: int, kv_len: int) -> Step:
    return Step(mode=Mode.EXTEND, requests=(Request(0, q_len, kv_len),), padded_tokens=q_len)


def verify(kv_len: int) -> Step:
    requests = (Request(0, 1 + DRAFTS, kv_len),)
    return Step(mode=Mode.TARGET_VERIFY, requests=requests, padded_tokens=1 + DRAFTS, tokens_per_request=1 + DRAFTS)


@pytest.fixture
def orders(release: Release, bench_of: Callable[..., Any]) -> Orders:
    """Orders all steps, and hands new requests to a runner that only keeps them.

    `drafted` are the ends by step; the steps in `elsewhere` are another server's.
    """

    def make(
        *steps: Step, drafted: dict[int, dict[int, int]] | None = None, elsewhere: Collection[int] = ()
    ) -> tuple[list[Any], Any]:
        loaded, case = load(release), Case(backend="vllm", geometry=GEOMETRY, steps=steps)
        batch = SimpleNamespace(req_id_to_index={})
        runner = SimpleNamespace(requests={}, reorder_batch_threshold=1 + DRAFTS, input_batch=batch)
        state = loaded.module("vllm.v1.worker.gpu_input_batch").CachedRequestState
        scheduled = ScheduledSteps(loaded, case, VllmPool(case, bench_of(case), PackedKv), runner)
        made = []
        for index, step in enumerate(steps):
            if index in elsewhere:
                continue
            made.append(scheduled.order(index, step.requests, (drafted or {}).get(index, {})))
            for new in made[-1].scheduled_new_reqs:
                runner.requests[new.req_id] = state(
                    new.req_id, new.prompt_token_ids, [], None, None, new.block_ids, new.num_computed_tokens, []
                )
        return made, runner.requests

    return make


def test_the_chunks_of_a_prompt_are_one_request_which_then_decodes(orders: Orders) -> None:
    (first, second, third), requests = orders(prefill(20, 20), prefill(15, 35), verify(39))
    (new,) = first.scheduled_new_reqs
    assert (len(new.prompt_token_ids), len(new.block_ids[0]), new.num_computed_tokens) == (35, 2, 0)
    assert second.scheduled_cached_reqs.req_ids == third.scheduled_cached_reqs.req_ids == [new.req_id]
    ((added,),) = second.scheduled_cached_reqs.new_block_ids
    assert len(added) == 1
    assert third.scheduled_spec_decode_tokens == {new.req_id: [36, 37, 38]}
    assert requests[new.req_id].output_token_ids == [35]


@pytest.mark.parametrize("accepted", range(DRAFTS + 1))
def test_after_a_verify_a_request_has_the_tokens_that_were_accepted(orders: Orders, accepted: int) -> None:
    computed = 36 + 1 + accepted
    (_, second), requests = orders(verify(40), verify(computed + 1 + DRAFTS))
    (name,) = second.scheduled_cached_reqs.req_ids
    assert second.scheduled_cached_reqs.num_computed_tokens == [computed]
    assert not second.finished_req_ids
    assert requests[name].output_token_ids == list(range(36, computed + 1))


@pytest.mark.parametrize("kv_len", [40, 45])
def test_where_a_step_cannot_follow_another_request_takes_the_slot(orders: Orders, kv_len: int) -> None:
    (first, second), _ = orders(verify(40), verify(kv_len))
    (before,), (after,) = first.scheduled_cached_reqs.req_ids, second.scheduled_cached_reqs.req_ids
    assert second.finished_req_ids == {before} != {after}


def test_a_request_that_no_later_step_has_ends(orders: Orders) -> None:
    other = Step(mode=Mode.EXTEND, requests=(Request(1, 5, 5),), padded_tokens=5)
    (first, second), _ = orders(prefill(20, 20), other)
    assert second.finished_req_ids == {first.scheduled_new_reqs[0].req_id}


def test_a_request_that_is_drafted_for_has_no_more_prompt(orders: Orders) -> None:
    (first, second), _ = orders(prefill(1, 1), prefill(5, 6), drafted={0: {0: 2}})
    (before,), (after,) = first.scheduled_new_reqs, second.scheduled_new_reqs
    assert len(before.prompt_token_ids) == 1
    assert second.finished_req_ids == {before.req_id} != {after.req_id}


def test_a_request_ends_where_another_server_has_run_its_slot(orders: Orders) -> None:
    (first, second), _ = orders(prefill(20, 20), prefill(1, 1), prefill(5, 25), elsewhere={1})
    (before,), (after,) = first.scheduled_new_reqs, second.scheduled_new_reqs
    assert second.finished_req_ids == {before.req_id}
    assert len(after.prompt_token_ids) == 25
