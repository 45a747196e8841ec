"""What a user asks of a campaign, and writes for a duration."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnfuzz.harness.campaign.plan import (
    LEAST_SECONDS_PER_SLICE,
    MOST_CASES_PER_SECOND,
    MOST_OUTPUTS_PER_CASE,
    PRESETS,
    SLICES_PER_SHARE,
    Plan,
    parse_duration,
)


def plan(*, examples: int | None = None, seconds: float | None = None, jobs: int = 1) -> Plan:
    return Plan(
        backends=("one", "two"),
        examples=examples,
        seconds=seconds,
        seed=1,
        jobs=jobs,
        contract="declared",
        guard=None,
        out=Path("out"),
        alpha=0.01,
    )


def test_alpha_is_shared_by_all_outputs_of_the_examples() -> None:
    outputs = 2 * 500 * MOST_OUTPUTS_PER_CASE
    assert plan(examples=500).alpha_per_output * outputs == pytest.approx(0.01)
    assert plan(examples=500, jobs=4).alpha_per_output == plan(examples=500).alpha_per_output


def test_alpha_is_shared_by_all_outputs_that_the_time_allows() -> None:
    outputs = 60 * 4 * MOST_CASES_PER_SECOND * MOST_OUTPUTS_PER_CASE
    assert plan(seconds=60, jobs=4).alpha_per_output * outputs == pytest.approx(0.01)


def test_a_backend_has_several_turns_in_its_share_of_the_time() -> None:
    assert plan(seconds=60, jobs=4).seconds_per_slice == 60 * 4 / 2 / SLICES_PER_SHARE
    assert plan(seconds=1).seconds_per_slice == LEAST_SECONDS_PER_SLICE


def test_no_clock_ends_the_slices_of_a_number_of_examples() -> None:
    assert plan(examples=500).seconds_per_slice is None


def test_the_only_backend_has_slices_without_a_time_limit() -> None:
    assert replace(plan(seconds=60), backends=("one",)).seconds_per_slice is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("1d", 86400)]
)
def test_durations_are_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10 m", "-5s", "1.5h", "m10", "10m5"])
def test_other_words_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="like 90s, 10m or 1h30m"):
        parse_duration(text)


def test_no_time_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 0"):
        parse_duration("0s")


def test_each_preset_has_one_budget() -> None:
    assert set(PRESETS) == {"quick", "nightly", "deep"}
    assert all((preset.examples is None) != (preset.seconds is None) for preset in PRESETS.values())
