"""Orders of events by version."""

import pytest
from packaging.version import Version

from attnfuzz.kernels.sglang.kinds import capability_of
from attnfuzz.kernels.sglang.orders import GraphPlanner, Order, Preparation, WorkerKind, lines, orders_of
from attnfuzz.reference.case import Mode

FIRST, LAST_WITH_V1, ONE_WORKER = Version("0.5.9"), Version("0.5.12.post1"), Version("0.5.13")


def the_only(version: Version, mode: Mode) -> Order:
    (order,) = orders_of(version).eager[mode]
    return order


def padded_after_planning(order: Order) -> bool:
    return order.events[-1][0] is Preparation.PAD


@pytest.mark.parametrize("version", lines())
def test_every_version_plans_a_draft_extend_before_it_is_padded_and_a_decode_after(version: Version) -> None:
    assert padded_after_planning(the_only(version, Mode.DRAFT_EXTEND_V2))
    assert not padded_after_planning(the_only(version, Mode.DECODE))


def test_a_verify_was_planned_before_padding_by_the_second_worker_alone_and_is_not_since_it_is_the_only_one() -> None:
    orders = orders_of(FIRST).eager[Mode.TARGET_VERIFY]
    assert {order.worker: padded_after_planning(order) for order in orders} == {
        WorkerKind.SPEC_V1: False,
        WorkerKind.SPEC_V2: True,
    }
    assert not padded_after_planning(the_only(ONE_WORKER, Mode.TARGET_VERIFY))


def test_the_first_workers_draft_extend_goes_with_it() -> None:
    assert Mode.DRAFT_EXTEND in orders_of(LAST_WITH_V1).eager
    assert Mode.DRAFT_EXTEND not in orders_of(ONE_WORKER).eager
    assert orders_of(LAST_WITH_V1).planner is GraphPlanner.ARGUMENTS
    assert orders_of(ONE_WORKER).planner is GraphPlanner.IN_AND_OUT


def test_the_second_workers_draft_extends_were_captured_for_latents_first() -> None:
    assert Mode.DRAFT_EXTEND_V2 in capability_of("trtllm_mla", FIRST).graph_modes
    assert Mode.DRAFT_EXTEND_V2 not in capability_of("trtllm_mha", LAST_WITH_V1).graph_modes
    assert Mode.DRAFT_EXTEND_V2 in capability_of("trtllm_mha", ONE_WORKER).graph_modes


def test_an_unknown_version_has_the_orders_of_the_one_before_it() -> None:
    assert orders_of(Version("0.5.14.dev3")) == orders_of(Version("0.5.13"))
    assert orders_of(Version("9.9")) == orders_of(max(lines()))
    assert orders_of(Version("0.1")) == orders_of(min(lines()))


def test_the_description_of_an_order_names_source_lines_and_server_options() -> None:
    order = the_only(FIRST, Mode.DRAFT_EXTEND_V2)
    assert order.words(padded=True) == (
        "spec v2 worker: plan (speculative/eagle_info_v2.py:208), then pad (model_executor/model_runner.py:2472); "
        "SGLANG_ENABLE_SPEC_V2=1; without CUDA graphs, or in a batch beyond the largest captured one; "
        "--enable-dp-attention, with other ranks of the data-parallel group that have more tokens"
    )


def test_the_description_of_an_unpadded_batch_does_not_mention_padding() -> None:
    words = the_only(FIRST, Mode.EXTEND).words(padded=False)
    assert words == "plain worker: plan (model_executor/model_runner.py:2335)"


def test_the_words_of_a_graph_say_where_it_is_planned() -> None:
    words = orders_of(FIRST).graphs[Mode.DECODE].words()
    assert words == (
        "plain worker: captured (model_executor/cuda_graph_runner.py:689), "
        "planned again (model_executor/cuda_graph_runner.py:830), replayed"
    )


def test_every_order_plans_once() -> None:
    for version in lines():
        for orders in orders_of(version).eager.values():
            assert all([event for event, _ in order.events].count(Preparation.PLAN) == 1 for order in orders)
