"""The charts of a report: lines over time or examples, and dots on a logarithmic axis."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10

from markupsafe import Markup

from attnfuzz.harness.report.svg import CHARACTER, Picture

COLORS = 6
"""Number of line colors; then they repeat."""

_WIDTH, _HEIGHT = 420.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 10.0, 12.0, 24.0
_MOST_POINTS = 400
_SMALLEST, _LARGEST = -4.0, 1.5
"""The ends of the margin axis, as powers of ten; values beyond are drawn at the end."""


@dataclass(frozen=True)
class Series:
    """A named line through `points`, by their x. With `steps`, it keeps its value up to the next point."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


def line_chart(label: str, lines: Sequence[Series], x_words: Callable[[float], str]) -> Markup:
    """Draw a line chart from 0 to the largest value."""
    picture = Picture(_WIDTH, label)
    picture.height = _HEIGHT
    right = max((x for line in lines for x, _ in line.points), default=0.0) or 1.0
    ticks = _ticks(max((y for line in lines for _, y in line.points), default=0.0))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    base = _TOP + height
    for tick in ticks:
        y = base - tick / ticks[-1] * height
        picture.line(_LEFT, y, _LEFT + width, y, "grid")
        words = _number(tick)
        picture.text(_LEFT - 6 - len(words) * CHARACTER, y + 4, words, "dim")
    for share in (0.0, 0.5, 1.0):
        words = x_words(share * right)
        x = _LEFT + share * width - len(words) * CHARACTER * share
        picture.text(x, _HEIGHT - 6, words, "dim")
    for index, line in enumerate(lines):
        placed = [(_LEFT + x / right * width, base - y / ticks[-1] * height) for x, y in _thinned(line.points)]
        if placed:
            picture.add("path", f"line c{index % COLORS}", title=line.name, d=_path(placed, steps=line.steps))
    return picture.markup()


@dataclass(frozen=True)
class Margin:
    """The largest margin of a tier among cases that passed (`largest`, None if none was), and those that failed."""

    tier: str
    largest: float | None
    failed: tuple[float, ...] = ()


def margin_chart(label: str, margins: Sequence[Margin]) -> Markup:
    """Draw the margins of each tier on a logarithmic axis, with the limit at 1."""
    row, left, top = 24.0, 34.0, 20.0
    picture = Picture(_WIDTH, label)
    picture.height = top + row * len(margins) + 18
    width = _WIDTH - left - 72

    def place(margin: float) -> float:
        power = log10(margin) if margin > 0 else _SMALLEST
        return left + (min(max(power, _SMALLEST), _LARGEST) - _SMALLEST) / (_LARGEST - _SMALLEST) * width

    base = top + row * len(margins)
    picture.rect(place(1.0), top - 6, left + width - place(1.0), base - top + 8, "beyond")
    for power in range(int(_SMALLEST), floor(_LARGEST) + 1):
        x = place(10.0**power)
        picture.line(x, top - 6, x, base + 2, "limit" if power == 0 else "grid")
        words = f"{10.0**power:g}"
        picture.text(x - len(words) * CHARACTER / 2, base + 15, words, "dim")
    picture.text(place(1.0) + 4, 9, "fails", "wrong-text small")
    for index, margin in enumerate(margins):
        y = top + row * index + row / 2 - 4
        picture.text(4, y + 4, margin.tier)
        picture.line(left, y, left + width, y, "grid")
        if margin.largest is not None:
            title = f"{margin.tier}: {margin.largest:.3g} times the bound, at most, among cases that passed"
            picture.add("circle", "margin", title=title, cx=place(margin.largest), cy=y, r=5)
            picture.text(left + width + 12, y + 4, f"{margin.largest:.3g}")
        for failed in margin.failed:
            x = place(failed)
            d = f"M{x - 4:.1f},{y - 4:.1f}l8,8m0,-8l-8,8"
            picture.add("path", "failed", title=f"{margin.tier}: a finding, {failed:.3g} times the bound", d=d)
    return picture.markup()


def share_bar(label: str, shares: Mapping[str, float]) -> Markup:
    """Draw a bar of parts that make up a whole, colored in order."""
    picture = Picture(_WIDTH, label)
    picture.height = 16
    total = sum(shares.values()) or 1.0
    x = 0.0
    for index, (name, amount) in enumerate(shares.items()):
        width = amount / total * _WIDTH
        picture.rect(x, 0, width, 16, f"part c{index % COLORS}", title=f"{name}: {amount / total:.0%}")
        x += width
    return picture.markup()


def _ticks(largest: float) -> list[float]:
    """Choose three to six round numbers from 0 to at least `largest`."""
    if largest <= 0 or not isfinite(largest):
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(largest))
    step = next(step for step in (power / 5, power / 2, power, 2 * power) if largest / step <= 5)
    count = int(-(-largest // step))
    return [step * index for index in range(count + 1)]


def _number(value: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):g}{letter}"
    return f"{value:g}"


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Thin out points evenly to `_MOST_POINTS`, keeping the last."""
    every = -(-len(points) // _MOST_POINTS) or 1
    return [*points[:-1:every], *points[-1:]]


def _path(points: Sequence[tuple[float, float]], *, steps: bool) -> str:
    (x, y), *others = points
    parts = [f"M{x:.1f},{y:.1f}"]
    parts += [f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f},{y:.1f}" for x, y in others]
    return "".join(parts)
