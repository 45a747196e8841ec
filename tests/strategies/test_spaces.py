"""Spaces of families other than attention: what drawn cases show, what a backend can reach, and leans."""

from functools import reduce
from operator import or_

import pytest

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.family import family_with
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.strategies.coverage import Pair, pair
from attnfuzz.strategies.lean import NO_LEAN, Lean
from attnfuzz.strategies.sparse_space import among

NATIVE = ("native:gated_delta_rule", "native:causal_conv1d", "native:selective_scan_of_channels", "native:sparse")
LIMITED = ("vllm_cpu:mamba", "vllm_cpu:topk_transform_512", "triton:sglang_kda")


def drawn(backend: str, examples: int = 200, lean: Lean = NO_LEAN) -> list[AnyCase]:
    """Cases of a backend, without its kernels."""
    found: list[AnyCase] = []
    run_examples(drawn_cases(backend, lean=lean), found.append, examples=examples, seed_of=1)
    return found


def reached(backend: str) -> set[Pair]:
    """The pairs of features of drawn cases."""
    space = family_with(resolve(backend).capability).space
    return set(space.pairs_in(reduce(or_, map(space.pair_bits, drawn(backend)))))


@pytest.mark.slow  # draws hundreds of cases of each backend
@pytest.mark.parametrize("backend", [*NATIVE, *LIMITED])
def test_drawn_cases_show_most_possible_pairs_and_no_impossible_one(backend: str) -> None:
    capability = resolve(backend).capability
    space = family_with(capability).space
    found, possible = reached(backend), space.possible_pairs(capability)
    assert {both: space.impossible(capability)[both] for both in found - possible} == {}
    assert len(possible - found) < 0.25 * len(possible)


def test_every_pair_is_possible_or_has_a_reason() -> None:
    capability = resolve("native:sparse").capability
    space = family_with(capability).space
    assert not space.possible_pairs(capability) & space.impossible(capability).keys()
    assert space.impossible(capability)[pair("mode=decode", "queries=several")]


def test_all_that_a_capability_names_is_drawn_beside_the_usual_options() -> None:
    assert among((8, 8, 16), (16, 128, 8)) == (8, 8, 16, 128)
    assert among((8, 16), ()) == (8, 16)


@pytest.mark.parametrize(
    ("backend", "features"),
    [
        ("native:gated_delta_rule", ("state mode=verify", "accepted=none")),
        ("native:causal_conv1d", ("taps=2", "padded=dummy rows")),
        ("native:sparse", ("mode=idle", "op=compress")),
    ],
)
def test_leans_draw_their_features_more_often(backend: str, features: tuple[str, ...]) -> None:
    family = family_with(resolve(backend).capability)

    def share(lean: Lean) -> float:
        cases = drawn(backend, 60, lean)
        return sum(family.table.coverage_of(case) >= set(features) for case in cases) / len(cases)

    assert share(Lean(features)) > 2 * share(NO_LEAN)


def test_features_of_different_steps_are_no_pair() -> None:
    family = family_with(resolve("native:gated_delta_rule").capability)
    both = pair("state mode=prefill", "accepted=one")
    shown = [case for case in drawn("native:gated_delta_rule") if {"prefill", "verify"} <= set(case.modes)]
    assert shown
    assert all(both not in family.space.pairs_in(family.pair_bits(case)) for case in shown)
