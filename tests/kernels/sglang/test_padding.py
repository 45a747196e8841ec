"""Ranks are made up around a case that pad it as it says, by the rule of SGLang's DpPaddingMode."""

import pytest
from msgspec.structs import replace
from small_cases import step

from attnfuzz.kernels.sglang.padding import Ranks, one_decode, ranks_of
from attnfuzz.reference.case import Case, Launch, Mode, Step
from attnfuzz.reference.geometry import Geometry

_GEOMETRY = Geometry(q_heads=2, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4)


def _case(*steps: Step) -> Case:
    return Case(backend="sglang", geometry=_GEOMETRY, steps=steps)


def _decode(requests: int, rows: int, launch: Launch = Launch.EAGER) -> Step:
    return step(Mode.DECODE, *[(1, 5)] * requests, rows=rows, launch=launch)


def _extend(tokens: int, rows: int) -> Step:
    return step(Mode.EXTEND, (tokens, tokens), rows=rows)


def test_a_case_without_padding_runs_on_one_rank() -> None:
    assert ranks_of(_case(_decode(3, 3), _extend(5, 5))) == Ranks(attention=1, data_parallel=1)


def test_a_graph_pads_by_its_bucket_and_needs_no_other_rank() -> None:
    capture = step(Mode.DECODE, rows=8, launch=Launch.CAPTURE)
    assert ranks_of(_case(capture, _decode(3, 8, Launch.REPLAY))) == Ranks(attention=1, data_parallel=1)


def test_a_decode_is_padded_to_the_tokens_of_other_ranks() -> None:
    ranks = ranks_of(_case(_decode(3, 7)))
    assert ranks == Ranks(attention=1, data_parallel=4)
    assert ranks.tokens(_decode(3, 7)) == [3, 7, 7, 7]


def test_raising_an_idle_rank_is_the_cheaper_way_for_its_group() -> None:
    tokens = ranks_of(_case(_decode(1, 7))).tokens(_decode(1, 7))
    assert sum(tokens) * 2 > max(tokens) * len(tokens)


@pytest.mark.parametrize(("tokens", "rows", "group"), [(5, 6, 2), (5, 8, 4), (9, 16, 8), (1, 16, 16)])
def test_an_extend_is_aligned_to_the_least_attention_group_that_makes_as_many_rows(
    tokens: int, rows: int, group: int
) -> None:
    ranks = ranks_of(_case(_extend(tokens, rows)))
    assert ranks == Ranks(attention=group, data_parallel=1)
    assert ranks.tokens(_extend(tokens, rows)) == [tokens]


def test_the_seed_chooses_among_attention_groups_that_make_as_many_rows() -> None:
    case = _case(_decode(3, 4))
    assert [ranks_of(replace(case, seed=seed)).attention for seed in range(4)] == [1, 2, 4, 1]


def test_an_extend_that_no_group_pads_to_as_many_rows_keeps_its_own() -> None:
    assert ranks_of(_case(_extend(5, 23))) == Ranks(attention=1, data_parallel=1)


def test_an_attention_group_is_one_for_all_steps() -> None:
    assert ranks_of(_case(_extend(5, 8), _decode(3, 8))) == Ranks(attention=4, data_parallel=4)


def test_a_ragged_draft_extend_is_counted_and_padded_by_whole_requests() -> None:
    ragged = step(Mode.DRAFT_EXTEND, (1, 9), (2, 9), stride=4, rows=9)
    assert ranks_of(_case(ragged)).tokens(ragged) == [8, 12, 12, 12]


@pytest.mark.parametrize(("rows", "padded"), [(2, 2), (3, 3), (7, 7)])
def test_each_decode_of_a_draft_model_is_padded_separately(rows: int, padded: int) -> None:
    drafts = step(Mode.DRAFT_DECODE, (3, 9), (3, 5), stride=3, rows=rows)
    decodes = [one_decode(drafts, number) for number in range(3)]
    assert [[each.kv_len for each in decode.requests] for decode in decodes] == [[7, 3], [8, 4], [9, 5]]
    assert {(decode.mode, decode.padded_tokens, decode.tokens) for decode in decodes} == {(Mode.DECODE, padded, 2)}
    assert ranks_of(_case(drafts)) == ranks_of(_case(*decodes))
