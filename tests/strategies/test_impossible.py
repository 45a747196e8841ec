"""What is said to be impossible is never drawn, and all else is drawn sooner or later."""

from collections.abc import Callable
from functools import reduce
from itertools import product
from operator import or_

import pytest
from hypothesis.strategies import SearchStrategy
from repetition import examples

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.coverage import (
    all_features,
    axes,
    choose_lean,
    impossible,
    pair,
    pair_bits,
    pairs_in,
    possible_pairs,
)

Draw = Callable[[SearchStrategy[Case], int], list[Case]]

BACKENDS = ("trtllm_mha", "trtllm_mla", "torch_sdpa")


def reached(drawn: list[Case]) -> set[tuple[str, str]]:
    """The pairs that these cases have."""
    return set(pairs_in(reduce(or_, map(pair_bits, drawn))))


def contradictions(reached: set[tuple[str, str]], can: Capability) -> dict[tuple[str, str], str]:
    """What was drawn although it is impossible, and why it is said to be."""
    return {both: impossible(can)[both] for both in reached & impossible(can).keys()}


@pytest.mark.slow
def test_nothing_impossible_is_drawn_and_little_else_is_missing(drawn: list[Case], capability: Capability) -> None:
    found = reached(drawn)
    assert contradictions(found, capability) == {}
    assert len(possible_pairs(capability) - found) < 0.04 * len(possible_pairs(capability))


@pytest.mark.slow
@examples(20, 60)
def test_a_bias_towards_rare_pairs_draws_nothing_impossible(
    count: int, drawn: list[Case], capability: Capability, draw: Draw
) -> None:
    before = reached(drawn[:200])
    for seed in range(3):
        lean = choose_lean(possible_pairs(capability) - before, before, seed)
        assert contradictions(reached(draw(cases(capability, "leaning", lean), count)), capability) == {}


def test_a_pair_is_either_possible_or_impossible() -> None:
    can = resolve("trtllm_mha").capability
    tables = list(axes().values())
    everything = {
        pair(*both)
        for at, features in enumerate(tables)
        for others in tables[:at]
        for both in product(features, others)
    }
    assert possible_pairs(can) | impossible(can).keys() == everything
    assert not possible_pairs(can) & impossible(can).keys()


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("mode=decode", "q lens=ragged", "the mode gives every request as many queries"),
        ("mode=extend", "launch=first replay", "graphs do not hold prefills"),
        ("kv len=0", "without keys=none", "every request has keys"),
        ("soft cap=yes", "dtype=float16", "the backend does not have soft caps"),
        ("chunks=one", "launch=eager", "nothing but a chunked prefill of latents is cut into chunks"),
        ("launch=first replay", "q lens=an idle request", "nothing on the axis mode goes with both"),
    ],
)
def test_impossible_pairs_have_a_reason(one: str, other: str, why: str) -> None:
    assert impossible(resolve("trtllm_mha").capability)[pair(one, other)] == why


@pytest.mark.parametrize("empty_kv", [True, False])
def test_long_queries_beside_short_keys_need_a_request_without_keys(*, empty_kv: bool) -> None:
    can = Capability(modes=(Mode.EXTEND,), empty_kv=empty_kv, kv_shorter_than_q=False)
    assert (pair("longest q=17 to 64", "longest kv=1 to 16") in possible_pairs(can)) is empty_kv


def test_every_reason_is_one_clause() -> None:
    for backend in BACKENDS:
        for why in set(impossible(resolve(backend).capability).values()):
            assert why
            assert "\n" not in why
            assert not why.endswith(".")


def test_a_feature_that_never_occurs_is_impossible_in_all_pairs() -> None:
    can = Capability(modes=(Mode.DECODE,))
    for feature in all_features():
        if feature.startswith(("drafts=", "accepted=", "chunks=")):
            assert not any(feature in both for both in possible_pairs(can))
