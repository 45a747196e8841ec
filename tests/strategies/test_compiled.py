"""What is drawn where modules are compiled for few geometries: all that they have, and nothing else."""

from collections import Counter
from collections.abc import Callable
from functools import reduce
from operator import or_

import pytest
from capabilities import COMPILED, COMPILED_LATENTS, FP8_DECODE, HEAD_DIM_64, HEAD_DIM_128
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace
from shrunk_cases import shrunk

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, Step
from attnfuzz.reference.device import Device
from attnfuzz.reference.features.classes import DRAFTS
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.validity import products, validate
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.coverage import features_of, impossible, pair, pair_bits, pairs_in, possible_pairs
from attnfuzz.strategies.lean import Lean

pytestmark = pytest.mark.slow

Draw = Callable[[SearchStrategy[Case], int], list[Case]]

BACKENDS = {"compiled": COMPILED, "latents": COMPILED_LATENTS}


@pytest.fixture(scope="module", params=BACKENDS)
def drawn(request: pytest.FixtureRequest, drawn_for: Callable[[str, Capability, int], list[Case]]) -> list[Case]:
    """Cases for each of the capabilities."""
    return drawn_for(request.param, BACKENDS[request.param], 250)


@pytest.fixture(scope="module")
def compiled(drawn_for: Callable[[str, Capability, int], list[Case]]) -> list[Case]:
    """Cases for kernels without latents."""
    return drawn_for("compiled", COMPILED, 250)


def covering(bucket: Bucket, drawn: list[Case]) -> list[Geometry]:
    """The drawn geometries that a bucket covers."""
    return [case.geometry for case in drawn if bucket.covers(case.geometry)]


def share(drawn: list[Case], holds: Callable[[Case], object]) -> float:
    """The share of the cases for which `holds`."""
    return sum(bool(holds(case)) for case in drawn) / len(drawn)


def test_every_case_is_valid_and_covered(drawn: list[Case]) -> None:
    can = BACKENDS[drawn[0].backend]
    for case in drawn:
        validate(case)
        assert can.why_not(case) is None


def test_buckets_are_drawn_alike(compiled: list[Case]) -> None:
    for bucket in COMPILED.buckets:
        assert 0.25 <= len(covering(bucket, compiled)) / len(compiled) <= 0.42


def test_all_that_a_bucket_has_is_drawn(drawn: list[Case]) -> None:
    for bucket in BACKENDS[drawn[0].backend].buckets:
        geometries = covering(bucket, drawn)
        for options, seen in (
            (bucket.heads, Counter((each.q_heads, each.kv_heads) for each in geometries)),
            (bucket.page_sizes, Counter(each.page_size for each in geometries)),
            (bucket.layouts, Counter(each.kv_layout for each in geometries)),
            (bucket.windows, Counter(each.window_left for each in geometries)),
            (bucket.sinks, Counter(each.sinks for each in geometries)),
            (bucket.soft_caps, Counter(each.soft_cap for each in geometries)),
        ):
            assert seen.keys() == set(options)
            assert min(seen.values()) >= 0.1 * len(geometries)


def test_every_number_of_drafts_and_every_mode_of_a_bucket_is_drawn(drawn: list[Case]) -> None:
    can = BACKENDS[drawn[0].backend]
    for bucket in can.buckets:
        steps = [step for case in drawn if bucket.covers(case.geometry) for step in case.steps]
        drafts = {step.tokens_per_request for step in steps if step.mode is Mode.TARGET_VERIFY}
        # One in 29 batches has 16 drafts: the next test looks for them where they are favoured.
        assert drafts - {16} == set(bucket.strides or (2, 3, 4, 5, 6, 7, 8))
        assert {step.mode for step in steps} == set(bucket.modes or can.modes)


@pytest.mark.parametrize("name", BACKENDS)
def test_many_drafts_are_drawn_where_a_bucket_has_no_strides(name: str, draw: Draw) -> None:
    favoured = draw(cases(BACKENDS[name], name, Lean((f"drafts={DRAFTS.of(16)}",))), 50)
    free = [bucket for bucket in BACKENDS[name].buckets if not bucket.strides]
    drafts = {
        step.tokens_per_request
        for case in favoured
        for step in case.steps
        if any(bucket.covers(case.geometry) for bucket in free)
    }
    assert not free or 16 in drafts


def test_the_modes_of_a_bucket_are_captured_in_graphs(compiled: list[Case]) -> None:
    for bucket in COMPILED.buckets:
        steps = [step for case in compiled if bucket.covers(case.geometry) for step in case.steps]
        replayed = Counter(step.mode for step in steps if step.launch is Launch.REPLAY)
        assert replayed.keys() == set(COMPILED.graph_modes)


def test_a_bucket_that_covers_the_same_geometries_has_drafts_of_its_own(draw: Draw) -> None:
    more = replace(HEAD_DIM_64, strides=(6,), modes=(Mode.TARGET_VERIFY,))
    drawn = draw(cases(replace(COMPILED, buckets=(HEAD_DIM_64, more)), "twice"), 60)
    verified = Counter(
        step.tokens_per_request for case in drawn for step in case.steps if step.mode is Mode.TARGET_VERIFY
    )
    assert verified.keys() == {4, 6}


def test_layers_of_served_models_are_drawn_more_often_than_chance_has_it(draw: Draw) -> None:
    bucket = replace(
        HEAD_DIM_64, heads=((1, 1), (2, 1), (3, 1), (4, 1), (8, 1)), windows=(-1, 0, 1, 2, 127), page_sizes=(16, 32, 64)
    )
    drawn = draw(cases(replace(COMPILED, buckets=(bucket,)), "served"), 100)

    def gpt_oss(case: Case) -> bool:
        geometry = case.geometry
        return (geometry.q_heads, geometry.window_left, geometry.page_size, geometry.sinks) == (8, 127, 64, True)

    assert share(drawn, gpt_oss) >= 0.05


def test_important_features_are_drawn_as_often_as_without_buckets(drawn: list[Case]) -> None:
    can = BACKENDS[drawn[0].backend]

    def steps(case: Case) -> list[Step]:
        return [step for step in case.steps if step.requests]

    assert share(drawn, lambda case: any(step.padded for step in steps(case))) >= 0.25
    assert share(drawn, lambda case: any(step.launch is Launch.REPLAY for step in steps(case))) >= 0.2
    assert share(drawn, lambda case: case.relation is not None) >= 0.15
    assert share(drawn, lambda case: len(steps(case)) > 1) >= 0.3
    if can.empty_kv:
        empty = share(drawn, lambda case: any(request.kv_len == 0 for step in steps(case) for request in step.requests))
        assert empty >= 0.2


def test_cases_are_small_but_for_a_few_with_very_long_kv(drawn: list[Case]) -> None:
    work = sorted(map(products, drawn))
    assert work[len(work) // 2] < 6e6
    assert sum(work) / len(work) < 40e6
    longest = [max(case.slot_lengths().values()) for case in drawn]
    assert sum(length > 700 for length in longest) >= 0.004 * len(drawn)
    assert max(longest) > 1500


def test_few_kvs_are_very_long_on_a_cpu(draw: Draw) -> None:
    drawn = draw(cases(replace(COMPILED, device=Device.CPU), "cpu"), 50)
    assert sum(max(case.slot_lengths().values()) > 2100 for case in drawn) <= 0.02 * len(drawn)


def test_nothing_impossible_is_drawn_and_little_else_is_missing(drawn: list[Case]) -> None:
    can = BACKENDS[drawn[0].backend]
    reached = set(pairs_in(reduce(or_, map(pair_bits, drawn))))
    assert {both: impossible(can)[both] for both in reached & impossible(can).keys()} == {}
    assert len(possible_pairs(can) - reached) < 0.06 * len(possible_pairs(can))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("head dim=64", "KV dtype=float8_e4m3"),
        ("group=3", "KV heads=1"),
        ("mode=extend", "dtype=float16"),
        ("drafts=8", "sinks=yes"),
        ("window=cuts keys off", "layout=NHD"),
    ],
)
def test_pairs_that_no_bucket_combines_are_impossible(one: str, other: str) -> None:
    assert pair(one, other) in impossible(COMPILED)


def test_pairs_that_one_bucket_combines_are_possible() -> None:
    for one, other in (("group=8", "KV heads=1"), ("group=3", "KV heads=over 4"), ("sinks=yes", "layout=NHD")):
        assert pair(one, other) in possible_pairs(COMPILED)


def test_a_growing_batch_reaches_lengths_beyond_its_first_step() -> None:
    # Prompts over 16 tokens are drawn where no request begins with more than 200 keys.
    assert pair("longest kv=257 to 1000", "longest q=17 to 64") in possible_pairs(COMPILED)
    assert pair("longest kv=over 1000", "longest q=17 to 64") in impossible(COMPILED)


def test_pairs_that_cost_too_much_in_all_buckets_are_impossible() -> None:
    wide = pair("batch=over 32", "page size=1")
    assert impossible(COMPILED_LATENTS)[wide] == "the backend has no modules for both, at a size that is drawn"
    assert wide in possible_pairs(replace(COMPILED, buckets=(replace(HEAD_DIM_64, page_sizes=(1,)),)))


def test_a_reason_names_the_modules() -> None:
    assert impossible(COMPILED)[pair("head dim=64", "KV dtype=float8_e4m3")] == (
        "the backend has no modules for both, at a size that is drawn"
    )
    assert impossible(COMPILED)[pair("group=5", "mode=decode")] == "the backend has no modules for this"
    assert impossible(COMPILED)[pair("head dim=32", "mode=decode")] == "the backend does not have this head dim"


@pytest.mark.parametrize("feature", ["group=3", "KV dtype=float8_e4m3", "drafts=1 to 2"])
def test_leaning_reaches_into_buckets(feature: str, compiled: list[Case], draw: Draw) -> None:
    leaning = draw(cases(COMPILED, "compiled", Lean((feature,))), 80)
    assert share(leaning, lambda case: feature in features_of(case)) >= 1.4 * share(
        compiled, lambda case: feature in features_of(case)
    )
    assert all(COMPILED.why_not(case) is None for case in leaning)


@pytest.mark.parametrize(
    ("fails", "bucket"),
    [
        (lambda _: True, HEAD_DIM_64),
        (lambda case: HEAD_DIM_128.covers(case.geometry), HEAD_DIM_128),
        (lambda case: case.geometry.kv_dtype is FP8_DECODE.kv_dtype, FP8_DECODE),
    ],
)
def test_shrinking_ends_in_the_simplest_geometry_of_a_bucket_that_fails(
    fails: Callable[[Case], bool], bucket: Bucket
) -> None:
    assert shrunk(cases(COMPILED, "any"), fails, examples=200).geometry == bucket.simplest
