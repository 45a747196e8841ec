"""Charts have round numbers at their axes, and say where the limit is."""

import pytest

from attnfuzz.harness.report.charts import Margin, Series, line_chart, margin_chart


def cross(margin: float) -> float:
    """Where a failing margin is drawn."""
    chart = margin_chart("margins", [Margin("T1", 0.5, (margin,))])
    return float(chart.partition('d="M')[2].partition(",")[0])


def dot(margin: float) -> float:
    """Where a passing margin is drawn."""
    return float(margin_chart("margins", [Margin("T1", margin)]).partition('cx="')[2].partition('"')[0])


def limit(chart: str) -> float:
    return float(chart.partition('class="limit" x1="')[2].partition('"')[0])


def test_margins_lie_on_their_side_of_the_limit() -> None:
    chart = margin_chart("margins", [Margin("T1", 0.99)])
    assert dot(0.99) < limit(chart) < cross(1.2) + 4


def test_margins_are_drawn_on_a_logarithmic_axis() -> None:
    assert dot(1) - dot(0.1) == pytest.approx(dot(0.1) - dot(0.01), abs=0.3)


def test_margins_beyond_the_axis_are_drawn_at_its_end() -> None:
    assert cross(1e30) == cross(1e6)
    assert dot(0.0) == dot(1e-9)


def test_a_finding_without_a_passing_margin_is_drawn_too() -> None:
    assert "7 times the bound" in margin_chart("margins", [Margin("T1", None, (7.0,))])


@pytest.mark.parametrize(
    ("largest", "tick"), [(1, ">1<"), (7, ">8<"), (37_098, ">40k<"), (2.5e6, ">2.5M<"), (0, ">1<")]
)
def test_axes_end_at_a_round_number_above_the_largest(largest: float, tick: str) -> None:
    assert tick in line_chart("numbers", [Series("a", [(0, 0), (1, largest)])], str)


def test_a_chart_of_nothing_is_drawn() -> None:
    assert "<svg" in line_chart("nothing", [], str)
    assert "<svg" in line_chart("nothing", [Series("a", [])], str)


def test_a_chart_of_a_long_campaign_stays_small_and_keeps_its_end() -> None:
    chart = line_chart("long", [Series("a", [(x, x) for x in range(100_001)])], str)
    assert len(chart) < 10_000
    assert "L410,12" in chart.replace(".0", "")


def test_a_line_of_steps_has_no_slopes() -> None:
    chart = line_chart("steps", [Series("a", [(0, 0), (1, 5)], steps=True)], str)
    assert "L" not in chart.partition(' d="')[2].partition('"')[0]
