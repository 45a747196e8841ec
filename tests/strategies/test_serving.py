"""The limits of a server that schedules the requests of a case itself, and the queries of one that quantises."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from capabilities import NARROW
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.kernels.planning.page_ids import PageIds
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, PageOrder
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.serving import Interleave, ServedQueries, Serving, SharedKeys
from attnfuzz.reference.validity import validate
from attnfuzz.strategies.cases import cases

pytestmark = pytest.mark.slow
"""Many cases are drawn."""

Draw = Callable[[SearchStrategy[Case], int], list[Case]]
MODES = (Mode.DECODE, Mode.EXTEND)


def test_a_backend_that_schedules_gets_limits_and_no_relation(draw: Draw) -> None:
    can = Capability(modes=MODES, layouts=tuple(KvLayout), schedules=True)
    drawn = draw(cases(can, "scheduling"), 60)
    assert (
        {bool(case.serving.budget) for case in drawn}
        == {bool(case.serving.shortage) for case in drawn}
        == {True, False}
    )
    assert {case.relation for case in drawn} == {None}
    assert {can.why_not(case) for case in drawn} == {None}


def test_a_server_that_may_not_schedule_asynchronously_does_not(draw: Draw) -> None:
    can = Capability(modes=MODES, layouts=tuple(KvLayout), schedules=True, asynchronous=False)
    drawn = draw(cases(can, "scheduling"), 40)
    assert {case.serving.asynchronous for case in drawn} == {False}
    asynchronous = replace(drawn[0], serving=Serving(asynchronous=True))
    assert can.why_not(asynchronous) == "asynchronous scheduling"


def test_a_pool_that_lacks_pages_serves_many_requests_side_by_side(draw: Draw) -> None:
    drawn = draw(cases(Capability(modes=MODES, layouts=tuple(KvLayout), schedules=True), "scheduling"), 300)
    many = [case for case in drawn if case.serving.shortage and max(len(step.requests) for step in case.steps) > 16]
    assert {case.pages.order for case in many} >= {PageOrder.REUSED, PageOrder.IDENTITY}
    for case in many:
        if case.pages.order is PageOrder.SHARED_PREFIX:
            # Its shortage counts a shared page for each of its requests.
            continue
        pages = PageIds.of(case).end - 1 + case.pages.spare
        assert pages - case.serving.shortage >= pages // 4


def test_other_backends_get_none(draw: Draw) -> None:
    drawn = draw(cases(Capability(modes=MODES), "planned"), 30)
    assert {case.serving for case in drawn} == {Serving()}
    assert {case.queries for case in drawn} == {ServedQueries()}
    assert {case.shared_keys for case in drawn} == {SharedKeys()}


def test_a_server_has_a_scale_of_queries_and_keeps_them_where_its_cache_is_exact(draw: Draw) -> None:
    can = Capability(
        modes=MODES, layouts=tuple(KvLayout), fp8_kv=True, kv_scales=True, query_scales=True, kept_queries=True
    )
    drawn = draw(cases(can, "quantising"), 100)
    for case in drawn:
        validate(case)
        assert can.why_not(case) is None
    quantised = [case.geometry.kv_dtype is DType.FLOAT8_E4M3 for case in drawn]
    kinds = {(case.queries.scale == 1, case.queries.kept) for case, fp8 in zip(drawn, quantised, strict=True) if fp8}
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}
    assert {case.queries.kept for case, fp8 in zip(drawn, quantised, strict=True) if not fp8} == {False}


def test_a_server_with_a_draft_model_decodes_drafts_after_a_prefix(draw: Draw) -> None:
    modes = (Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_DECODE)
    can = Capability(modes=modes, empty_kv=False, kv_shorter_than_q=False)
    drawn = draw(cases(can, "drafting"), 60)
    drafts = [step for case in drawn for step in case.steps if step.mode is Mode.DRAFT_DECODE]
    assert len({step.tokens_per_request for step in drafts}) > 3
    assert all(each.kv_len > each.q_len == step.tokens_per_request for step in drafts for each in step.requests)
    assert all(len({step.drafts for step in case.steps} - {0}) <= 1 for case in drawn)
    assert {can.why_not(case) for case in drawn} == {None}
    follows = [(before.mode, step.mode) for case in drawn for before, step in pairwise(case.steps)]
    assert (Mode.TARGET_VERIFY, Mode.DRAFT_DECODE) in follows


def test_drafts_alone_are_decoded_after_a_prefix(draw: Draw) -> None:
    can = Capability(modes=(Mode.DRAFT_DECODE,))
    drawn = draw(cases(can, "drafting alone"), 60)
    for case in drawn:
        validate(case)
    assert {step.mode for case in drawn for step in case.steps} == {Mode.DRAFT_DECODE}
    assert {can.why_not(case) for case in drawn} == {None}


def test_a_draft_model_continues_after_a_verify_with_rejected_drafts(draw: Draw) -> None:
    modes = (Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND, Mode.DRAFT_DECODE)
    drawn = draw(cases(Capability(modes=modes, empty_kv=False, kv_shorter_than_q=False), "drafting"), 100)
    rejecting = 0
    for before, step in (both for case in drawn for both in pairwise(case.steps)):
        if step.mode is Mode.DRAFT_DECODE and before.mode in (Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND):
            verified = {each.slot: each for each in before.requests}
            prefixes = {each.slot: each.kv_len - each.q_len for each in step.requests if each.slot in verified}
            rejecting += any(
                verified[slot].kv_len - verified[slot].q_len < prefix < verified[slot].kv_len
                for slot, prefix in prefixes.items()
            )
    assert rejecting > 5


def test_kernels_without_a_server_get_no_drafts_of_a_draft_model() -> None:
    assert set(Mode) - set(Mode.of_kernels()) == {Mode.DRAFT_DECODE}


def test_steps_have_as_many_rows_as_a_kernel_with_costly_programs_allows(draw: Draw) -> None:
    can = NARROW["few programs"]
    drawn = draw(cases(can, "costly"), 300)
    assert {can.why_not(case) for case in drawn} == {None}
    rows = [(max(step.padded_tokens for step in case.steps), case) for case in drawn]
    programs = [number * case.geometry.q_heads * case.shared_keys.ranks for number, case in rows]
    assert max(programs) == can.most_programs
    assert {case.shared_keys.ranks for case in drawn} == {2, 4}
    # As many drafts as fit are drawn, several requests, graphs and padding.
    assert {step.drafts for case in drawn for step in case.steps} >= {0, 2, 3, 4}
    assert any(len(step.requests) > 4 for case in drawn for step in case.steps)
    assert {step.launch for case in drawn for step in case.steps} == set(Launch)
    assert any(step.padded for case in drawn for step in case.steps if step.launch is Launch.EAGER)


def test_ranks_that_share_keys_have_whole_query_heads_and_one_token_in_a_row_beside_drafts(draw: Draw) -> None:
    can = NARROW["ranks that share keys"]
    drawn = draw(cases(can, "sharing"), 60)
    assert {(case.geometry.q_heads, case.shared_keys.ranks) for case in drawn} == {(4, 2), (4, 4), (6, 2)}
    drafted = [case.shared_keys.interleave for case in drawn if any(step.drafts for step in case.steps)]
    others = [case.shared_keys.interleave for case in drawn if not any(step.drafts for step in case.steps)]
    assert (set(drafted), set(others)) == ({Interleave.TOKEN}, set(Interleave))
    assert {case.shared_keys.all_to_all for case in drawn} == {True, False}
    assert {can.why_not(case) for case in drawn} == {None}
