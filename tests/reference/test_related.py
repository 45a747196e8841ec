"""What each relation makes of a case, and which cases it says nothing about."""

from typing import Any

import pytest
from msgspec.structs import replace

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, PageOrder, Pages, Request, Step
from attnfuzz.reference.geometry import Geometry, KvLayout, Latent
from attnfuzz.reference.related import related
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.validity import MAX_BATCH, ImpossibleCase, validate
from attnfuzz.strategies.rare_features import applicable

GEOMETRY = Geometry(q_heads=4, kv_heads=2, head_dim_qk=64, head_dim_vo=64, page_size=16)
LATENT = Geometry(q_heads=4, kv_heads=1, head_dim_qk=40, head_dim_vo=32, page_size=16, latent=Latent(32, 8, 16, 16))
EXTEND = Step(mode=Mode.EXTEND, requests=(Request(1, 3, 30), Request(0, 1, 2)), padded_tokens=6)
CAPTURE = Step(mode=Mode.TARGET_VERIFY, requests=(), padded_tokens=12, tokens_per_request=4, launch=Launch.CAPTURE)
REPLAY = replace(CAPTURE, requests=(Request(0, 4, 20), Request(2, 4, 0)), launch=Launch.REPLAY)
CHUNKED = Step(mode=Mode.CHUNKED_PREFILL, requests=(Request(0, 2, 9), Request(1, 3, 3)), padded_tokens=5)
ANYTHING = Capability(layouts=tuple(KvLayout), graph_modes=(Mode.TARGET_VERIFY,), padding=True)


def case(*steps: Step, relation: Relation, geometry: Geometry = GEOMETRY, **fields: Any) -> Case:
    made = Case(backend="any", geometry=geometry, steps=steps, relation=relation, **fields)
    validate(made)
    return made


def test_the_same_call_changes_nothing() -> None:
    same = case(CAPTURE, REPLAY, EXTEND, relation=Relation.SAME_CALL)
    assert related(same).case == replace(same, relation=None)
    assert related(same).steps == (None, 1, 2)


@pytest.mark.parametrize(
    ("order", "other"),
    [
        (PageOrder.IDENTITY, PageOrder.REVERSED),
        (PageOrder.REVERSED, PageOrder.IDENTITY),
        (PageOrder.INTERLEAVED, PageOrder.REVERSED),
        (PageOrder.SHUFFLED, PageOrder.IDENTITY),
    ],
)
def test_pages_get_other_ids(order: PageOrder, other: PageOrder) -> None:
    relabelled = related(case(EXTEND, relation=Relation.PAGES_RELABELLED, pages=Pages(order=order, spare=3)))
    assert relabelled.case.pages == Pages(order=other, spare=3)


def test_a_permuted_batch_is_reversed() -> None:
    permuted = related(case(EXTEND, CAPTURE, REPLAY, relation=Relation.BATCH_PERMUTED))
    assert [request.slot for request in permuted.case.steps[0].requests] == [0, 1]
    assert permuted.positions == ((1, 0), (), (1, 0))


def test_an_appended_request_has_a_slot_of_its_own_and_takes_the_place_of_padding() -> None:
    extend, capture, replay = related(case(EXTEND, CAPTURE, REPLAY, relation=Relation.REQUEST_APPENDED)).case.steps
    assert extend.requests == (*EXTEND.requests, Request(3, 3, 20))
    assert extend.padded_tokens == EXTEND.padded_tokens + 3
    assert replay.requests == (*REPLAY.requests, Request(3, 4, 21))
    assert capture == CAPTURE
    assert replay.padded_tokens == CAPTURE.padded_tokens


def test_a_full_graph_grows_by_a_request() -> None:
    full = (replace(CAPTURE, padded_tokens=8), replace(REPLAY, requests=REPLAY.requests[::-1], padded_tokens=8))
    moved = tuple(replace(request, slot=position) for position, request in enumerate(full[1].requests))
    steps = (full[0], replace(full[1], requests=moved))
    capture, replay = related(case(*steps, relation=Relation.REQUEST_APPENDED)).case.steps
    assert capture.padded_tokens == replay.padded_tokens == 12


def test_chunks_keep_their_share_beside_an_appended_request() -> None:
    chunked = case(CHUNKED, geometry=LATENT, chunk_capacity=7, relation=Relation.REQUEST_APPENDED)
    assert related(chunked).case.chunk_capacity == 9


def test_enlarged_padding_adds_requests_where_a_batch_is_uniform_and_tokens_elsewhere() -> None:
    extend, capture, replay = related(case(EXTEND, CAPTURE, REPLAY, relation=Relation.PADDING_ENLARGED)).case.steps
    assert extend.padded_tokens == EXTEND.padded_tokens + 2
    assert capture.padded_tokens == replay.padded_tokens == CAPTURE.padded_tokens + 8


def test_replays_run_eagerly_without_their_captures() -> None:
    eager = related(case(EXTEND, CAPTURE, REPLAY, relation=Relation.REPLAY_AS_EAGER))
    assert eager.case.steps == (EXTEND, replace(REPLAY, launch=Launch.EAGER))
    assert eager.steps == (0, None, 1)


@pytest.mark.parametrize(("capacity", "other"), [(2, 14), (12, 14), (14, 8), (256, 8)])
def test_several_chunks_become_one_and_one_becomes_two(capacity: int, other: int) -> None:
    chunked = case(CHUNKED, geometry=LATENT, chunk_capacity=capacity, relation=Relation.CHUNKS_CHANGED)
    assert related(chunked).case.chunk_capacity == other


@pytest.mark.parametrize(("slack", "other"), [(0, 1024), (7, 0)])
def test_splits_follow_from_another_stated_maximum(slack: int, other: int) -> None:
    split = case(EXTEND, relation=Relation.SPLITS_CHANGED, max_len_slack=slack)
    assert related(split).case.max_len_slack == other


ONE = Step(mode=Mode.EXTEND, requests=(Request(0, 3, 9),), padded_tokens=3)


@pytest.mark.parametrize(
    ("impossible", "words"),
    [
        (Case(backend="any", geometry=GEOMETRY, steps=(ONE,), relation=Relation.PAGES_RELABELLED), "no two pages"),
        (
            Case(
                backend="any",
                geometry=GEOMETRY,
                steps=(EXTEND,),
                pages=Pages(order=PageOrder.SHARED_PREFIX),
                relation=Relation.PAGES_RELABELLED,
            ),
            "sequences share pages",
        ),
        (Case(backend="any", geometry=GEOMETRY, steps=(ONE,), relation=Relation.BATCH_PERMUTED), "several requests"),
        (
            Case(backend="any", geometry=GEOMETRY, steps=(ONE,), relation=Relation.REPLAY_AS_EAGER),
            "no step is replayed",
        ),
        (Case(backend="any", geometry=GEOMETRY, steps=(CHUNKED,), relation=Relation.CHUNKS_CHANGED), "in chunks"),
        (
            Case(
                backend="any",
                geometry=LATENT,
                steps=(replace(CHUNKED, requests=(Request(0, 2, 3),)),),
                relation=Relation.CHUNKS_CHANGED,
            ),
            "cut in two",
        ),
        (
            Case(
                backend="any",
                geometry=GEOMETRY,
                steps=(
                    Step(
                        mode=Mode.DECODE,
                        requests=tuple(Request(slot, 1, 1) for slot in range(MAX_BATCH)),
                        padded_tokens=MAX_BATCH,
                        tokens_per_request=1,
                    ),
                ),
                relation=Relation.REQUEST_APPENDED,
            ),
            "its other case is impossible: steps\\[0\\].requests is '1025 requests'",
        ),
    ],
)
def test_a_relation_without_effect_is_refused(impossible: Case, words: str) -> None:
    with pytest.raises(ImpossibleCase, match=rf"^relation is '{impossible.relation}': .*{words}"):
        validate(impossible)


def test_applicable_relations_depend_on_case_and_backend() -> None:
    replayed = case(EXTEND, CAPTURE, REPLAY, relation=Relation.SAME_CALL)
    assert set(applicable(replayed, ANYTHING)) == set(Relation) - {Relation.CHUNKS_CHANGED}
    unpadded = case(replace(EXTEND, padded_tokens=4), relation=Relation.SAME_CALL)
    bare = Capability(modes=(Mode.EXTEND,), layouts=(KvLayout.HND,))
    assert Relation.PADDING_ENLARGED not in applicable(unpadded, bare)
    assert Relation.REQUEST_APPENDED in applicable(unpadded, bare)
    padded = replace(unpadded, relation=Relation.PADDING_ENLARGED)
    assert bare.why_not(padded) == "padded batches (in its related run: padding enlarged)"
