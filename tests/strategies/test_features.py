"""What a case is said to show: features on axes, and the pairs of them that hold at the same time."""

from itertools import combinations

import pytest
from msgspec.structs import replace

from attnfuzz.reference.case import Case, Launch, Mode, Request, Step
from attnfuzz.reference.geometry import Geometry, Latent
from attnfuzz.strategies.coverage import all_features, axes, axis_of, features_of, pair, pair_bits, pairs_in, pairs_of

pytestmark = pytest.mark.slow

GEOMETRY = Geometry(q_heads=4, kv_heads=2, head_dim_qk=64, head_dim_vo=64, page_size=16)


def decode(*kv_lens: int, slots: tuple[int, ...] | None = None) -> Step:
    """A decode of one request for each KV length."""
    places = slots or tuple(range(len(kv_lens)))
    requests = tuple(Request(slot, 1, kv_len) for slot, kv_len in zip(places, kv_lens, strict=True))
    return Step(mode=Mode.DECODE, requests=requests, padded_tokens=len(kv_lens), tokens_per_request=1)


def extend(*lengths: tuple[int, int], mode: Mode = Mode.EXTEND) -> Step:
    """A prefill of one request for each (q_len, kv_len)."""
    requests = tuple(Request(slot, *each) for slot, each in enumerate(lengths))
    return Step(mode=mode, requests=requests, padded_tokens=sum(q_len for q_len, _ in lengths))


def capture(step: Step) -> Step:
    """The capture that a replay needs."""
    return replace(step, requests=(), launch=Launch.CAPTURE)


def replay(step: Step) -> Step:
    """A step as a replay."""
    return replace(step, launch=Launch.REPLAY)


def case_of(*steps: Step, **fields: object) -> Case:
    """A plain case of these steps."""
    return replace(Case(backend="any", geometry=GEOMETRY, steps=steps), **fields)


def on(axis: str, case: Case) -> set[str]:
    """The values of a case on an axis."""
    return {feature.removeprefix(f"{axis}=") for feature in features_of(case) if axis_of(feature) == axis}


@pytest.mark.parametrize(
    ("kv_len", "where"),
    [
        (0, "0"),
        (1, "1"),
        (2, "within a page"),
        (15, "within a page"),
        (16, "one page"),
        (17, "a page and one"),
        (18, "several pages"),
        (32, "whole pages"),
        (33, "several pages"),
    ],
)
def test_kv_lengths_are_reported_apart_by_where_they_lie_among_pages(kv_len: int, where: str) -> None:
    assert on("kv len", case_of(decode(kv_len))) == {where}


@pytest.mark.parametrize(
    ("step", "axis", "values"),
    [
        (decode(3, 0), "without keys", {"some"}),
        (decode(0, 0), "without keys", {"all"}),
        (decode(3, 16), "kv len", {"within a page", "one page"}),
        (decode(2000, 3), "longest kv", {"over 1000"}),
        (decode(*(3,) * 40), "batch", {"over 32"}),
        (decode(3, 3, slots=(1, 0)), "slots", {"permuted"}),
        (extend((3, 3), (1, 3)), "q lens", {"ragged"}),
        (extend((3, 3), (0, 3)), "q lens", {"the same", "an idle request"}),
        (extend((5, 3), (2, 2), (1, 8)), "prefix", {"fewer keys than queries", "none", "yes"}),
        (replace(extend((3, 3)), padded_tokens=8), "padding", {"tokens"}),
        (replace(decode(3, 3), padded_tokens=3), "padding", {"fewer requests than real"}),
        (replace(decode(3, 3), padded_tokens=4), "padding", {"as many requests, or more"}),
        (extend((3, 3), mode=Mode.CHUNKED_PREFILL), "chunks", set()),
        (decode(3), "drafts", set()),
    ],
)
def test_the_lengths_of_a_step_determine_its_features(step: Step, axis: str, values: set[str]) -> None:
    assert on(axis, case_of(step)) == values


def test_a_request_without_queries_shows_no_features() -> None:
    assert on("kv len", case_of(extend((1, 3), (0, 16)))) == {"within a page"}


def test_accept_lengths_are_reported_apart() -> None:
    requests = tuple(Request(slot, accepted, 9) for slot, accepted in enumerate((1, 3, 4)))
    step = Step(mode=Mode.DRAFT_EXTEND, requests=requests, padded_tokens=8, tokens_per_request=4)
    assert on("accepted", case_of(step)) == {"one", "part", "all"}


def test_a_latent_prefix_is_cut_into_chunks() -> None:
    latent = Latent(rank=16, rope=8, nope=8, vo=8)
    geometry = replace(GEOMETRY, kv_heads=1, head_dim_qk=24, head_dim_vo=16, latent=latent)
    step = extend((1, 9), (1, 2), mode=Mode.CHUNKED_PREFILL)
    assert on("chunks", case_of(step, geometry=geometry, chunk_capacity=8)) == {"several", "one request ends early"}
    assert on("chunks", case_of(step, geometry=geometry)) == {"one"}


def test_a_window_shows_whether_it_cuts_keys_off() -> None:
    def windowed(left: int) -> set[str]:
        return on("window", case_of(decode(9), geometry=replace(GEOMETRY, window_left=left)))

    assert [windowed(left) for left in (-1, 0, 7, 8)] == [
        {"none"},
        {"a query's own key"},
        {"cuts keys off"},
        {"longer than all keys"},
    ]


def test_replays_of_a_graph_are_reported_from_its_first() -> None:
    step = decode(3)
    assert on("launch", case_of(capture(step), replay(step))) == {"first replay"}
    assert on("launch", case_of(capture(step), replay(step), replay(step))) == {"first replay", "replayed again"}


def test_a_graph_is_captured_late_if_something_ran_before() -> None:
    step = decode(3)
    assert on("launch", case_of(step, capture(step), replay(step))) == {"eager", "first replay", "captured late"}
    assert on("launch", case_of(capture(step), step, replay(step))) == {"eager", "first replay"}


def test_a_slot_with_fewer_keys_than_before_has_a_new_request() -> None:
    assert on("past", case_of(decode(9), decode(10))) == {"new", "grown"}
    assert on("past", case_of(decode(9), decode(3))) == {"new", "handed on"}


def test_features_of_two_steps_make_no_pair() -> None:
    case = case_of(decode(3), extend((5, 16)))
    assert {"mode=decode", "mode=extend", "kv len=one page"} <= features_of(case)
    assert pair("mode=extend", "kv len=one page") in pairs_of(case)
    assert pair("mode=decode", "kv len=one page") not in pairs_of(case)


def test_features_of_the_case_make_pairs_with_those_of_every_step() -> None:
    pairs = pairs_of(case_of(decode(3), extend((5, 16))))
    for feature in ("mode=decode", "mode=extend", "page size=16"):
        assert pair(feature, "head dim=64") in pairs


def test_pairs_are_those_of_the_cases_that_have_one_of_the_steps(drawn: list[Case]) -> None:
    """By another way: what several steps show together is what they show alone, but for what they are to each other."""
    for case in (case for case in drawn[:200] if len(case.steps) == 1):
        both = combinations(sorted(features_of(case)), 2)
        assert pairs_of(case) == {each for each in both if axis_of(each[0]) != axis_of(each[1])}


def test_pairs_are_in_order_and_of_different_axes(drawn: list[Case]) -> None:
    for case in drawn[:100]:
        for one, other in pairs_of(case):
            assert one < other
            assert axis_of(one) != axis_of(other)


def test_bits_stand_for_the_same_pairs_in_order(drawn: list[Case]) -> None:
    for case in drawn[:60]:
        assert pairs_in(pair_bits(case)) == tuple(sorted(pairs_of(case)))


def test_drawn_cases_have_a_feature_on_every_mandatory_axis(drawn: list[Case]) -> None:
    never_left_out = axes().keys() - {"prefix", "drafts", "accepted", "chunks"}
    for case in drawn[:100]:
        assert features_of(case) <= frozenset(all_features())
        assert never_left_out <= {axis_of(feature) for feature in features_of(case)}
