"""The map has a place for every pair that there can be, and says why the others can't."""

import re
from collections.abc import Collection
from functools import cache

import pytest

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.report.coverage import Coverage, heat_map, named
from attnfuzz.strategies.coverage import Pair, axes, axis_of, possible_pairs

BACKEND = "torch_sdpa"
CELL = 5


@cache
def possible() -> list[Pair]:
    return sorted(possible_pairs(resolve(BACKEND).capability))


def cells(chart: str, status: str) -> int:
    """How many cells of a status the map has."""
    paths = re.findall(rf'<path class="pairs {status}" d="([^"]*)"', chart)
    return sum(int(width) for path in paths for width in re.findall(r"h(\d+)v", path)) // CELL


def coverage_of(pairs: Collection[Pair]) -> Coverage:
    return Coverage.of(BACKEND, resolve(BACKEND).capability, pairs)


def test_every_pair_is_reached_unreached_or_impossible() -> None:
    coverage = coverage_of(possible()[::2])
    features = [len(members) for members in axes().values()]
    pairs = (sum(features) ** 2 - sum(size**2 for size in features)) // 2
    assert len(coverage.reached) + len(coverage.unreached) + len(coverage.impossible) == pairs
    assert coverage.possible == len(possible())
    assert coverage.share == pytest.approx(0.5, abs=0.01)


def test_the_map_has_a_cell_for_every_pair_of_axes_that_vary() -> None:
    coverage = coverage_of(possible()[::3])
    chart = heat_map(coverage)
    varied = coverage.varied().keys()
    for status in ("reached", "unreached", "impossible"):
        assert cells(chart, status) == sum(varied >= set(map(axis_of, pair)) for pair in getattr(coverage, status))


def test_the_map_leaves_axes_out_that_have_one_value() -> None:
    coverage = coverage_of(possible()[::3])
    assert "latent" not in coverage.varied()
    assert all(
        len({feature for pair in possible() for feature in pair if axis_of(feature) == axis}) > 1
        for axis in coverage.varied()
    )


def test_a_map_is_small() -> None:
    assert len(heat_map(coverage_of(possible()[::2]))) < 900_000
    assert len(heat_map(coverage_of(possible()))) < 580_000


def test_the_tooltip_of_a_block_states_the_reasons() -> None:
    coverage = coverage_of(())
    varied = coverage.varied().keys()
    pair, reason = next(item for item in coverage.impossible.items() if varied >= set(map(axis_of, item[0])))
    one, other = next(iter(coverage.by_block([pair])))
    assert re.search(rf"<title>{re.escape(one)} and {re.escape(other)}: \d+ pairs? impossible: ", heat_map(coverage))
    assert reason in dict(coverage.reasons())


def test_reached_pairs_are_not_impossible() -> None:
    impossible = next(iter(coverage_of(()).impossible))
    coverage = coverage_of([impossible])
    assert impossible in coverage.reached
    assert impossible not in coverage.impossible


def test_features_of_another_version_are_left_out() -> None:
    coverage = coverage_of([("mode=decode", "zodiac=aries")])
    assert not coverage.reached
    heat_map(coverage)


def test_an_unknown_backend_keeps_its_reached_pairs() -> None:
    coverage = Coverage.of("mine.py:MINE", None, possible()[:100])
    assert len(coverage.reached) == 100
    assert coverage.unknown
    assert not coverage.unreached
    assert cells(heat_map(coverage), "reached") == 100


def test_unreached_pairs_are_listed_by_axes_most_first() -> None:
    blocks = coverage_of(possible()[:-500]).unreached_by_block()
    sizes = [len(pairs) for _, pairs in blocks]
    assert sum(sizes) == 500
    assert sizes == sorted(sizes, reverse=True)


def test_long_lists_of_pairs_say_how_many_more_there_are() -> None:
    pairs = [("a=1", f"b={value}") for value in "xyz"]
    assert named(pairs, 2) == "1 & x, 1 & y, and 1 more"
    assert named(pairs[:1], 2) == "1 & x"
