"""A picture of the errors of rows: a square for each head and token, the darker the larger its error."""

from collections import defaultdict
from math import sqrt

from markupsafe import Markup

from attnfuzz.harness.report.svg import CHARACTER, Picture
from attnfuzz.harness.verdict.failures import WrongRows

_CELL = 12
_LEVELS = 5
_TOP = 16
_MOST_TOKENS = 64
_MOST_HEADS = 16


def draw_errors(rows: WrongRows) -> Markup | None:
    """Draw the map of errors; None for a single row, or without errors."""
    # A log may be damaged.
    lines = [errors[:_MOST_TOKENS] for errors in rows.errors[:_MOST_HEADS]]
    largest = max((error for errors in lines for error in errors), default=0.0)
    columns = max(map(len, lines), default=0)
    if largest <= 0 or len(lines) * columns < 2:
        return None
    labels = [f"head {rows.head + index}" for index in range(len(lines))]
    left = max(map(len, labels)) * CHARACTER + 8
    picture = Picture(max(left + columns * _CELL, 240.0), "errors by head and token", minimum=240)
    picture.text(left, _TOP - 5, f"tokens {rows.token} to {rows.token + columns - 1} of the batch", "dim")
    cells: defaultdict[int, list[str]] = defaultdict(list)
    for line, errors in enumerate(lines):
        y = _TOP + line * _CELL
        picture.text(0, y + _CELL - 2.5, labels[line], "dim small")
        for column, error in enumerate(errors):
            # A square root, so that errors of a hundredth of the largest can be seen.
            level = round(sqrt(error / largest) * _LEVELS) if error > 0 else 0
            cells[level].append(f"M{left + column * _CELL:g} {y}h{_CELL - 1}v{_CELL - 1}h-{_CELL - 1}z")
    for level, paths in sorted(cells.items()):
        title = f"up to {(level / _LEVELS) ** 2 * largest:.3g}" if level else "no error, or a very small one"
        style, opacity = ("wrong-token", level / _LEVELS) if level else ("cell", 1.0)
        picture.add("path", style, title=title, d="".join(paths), opacity=opacity)
    token, head = rows.worst[0] - rows.token, rows.worst[1] - rows.head
    edge = left + token * _CELL - 0.5
    picture.rect(edge, _TOP + head * _CELL - 0.5, _CELL, _CELL, "row-edge", title="the failing row")
    picture.height = _TOP + len(lines) * _CELL + 2
    return picture.markup()
