"""What users write for a duration."""

import pytest

from attnfuzz.harness.campaign.plan import parse_duration


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
