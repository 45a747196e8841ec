"""The picture of a case of sparse attention: the keys of each query, and which of them its list has."""

from markupsafe import Markup

from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.reference.sparse.case import SparseCase

_CELL, _LEFT, _MOST_ROWS, _MOST_KEYS = 8, 150, 24, 96


def draw_lists(case: SparseCase, failure: Observation) -> Markup:
    """Draw a row for each query of the failing step, with a cell for each key, filled if the query's list has it.

    The lists are those of a top-k of drawn scores; rows and keys beyond the picture are counted in words.
    """
    at = failure.step if 0 <= failure.step < len(case.steps) else 0
    inputs = OpInputs(case, at)
    shown = inputs.rows[:_MOST_ROWS]
    keys = min(max((row.length for row in shown), default=1), _MOST_KEYS)
    parts = []
    counts: dict[int, int] = {}
    for index, row in enumerate(shown):
        token = counts[row.request] = counts.get(row.request, -1) + 1
        wrong = failure.row is not None and (failure.row.request, failure.row.token) == (row.request, token)
        label = "padding" if row.request < 0 else f"request {row.request}, token {token}"
        top = 14 + index * (_CELL + 4)
        parts.append(
            Markup('<text x="0" y="{}" class="{}">{}</text>').format(
                top + _CELL, "wrong" if wrong else "row", f"{label}: {row.length}"
            )
        )
        listed = set(inputs.positions(index, case.geometry.top_k, row.length).tolist())
        for key in range(min(row.length, keys)):
            kind = "listed" if key in listed else "key"
            fill = "#c33" if wrong and kind == "listed" else "#369" if kind == "listed" else "#ddd"
            parts.append(
                Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="{}" class="{}"/>').format(
                    _LEFT + key * (_CELL + 1), top, _CELL, _CELL, fill, kind
                )
            )
    more = len(inputs.rows) - len(shown)
    height = 30 + len(shown) * (_CELL + 4)
    if more:
        parts.append(Markup('<text x="0" y="{}">{}</text>').format(height - 4, f"and {more} more rows"))
    title = f"step {at}: each query's keys, and its list of up to {case.geometry.top_k}"
    return Markup(
        '<svg class="lists" xmlns="http://www.w3.org/2000/svg" width="{}" height="{}" font-size="10" '
        'font-family="sans-serif" role="img"><title>{}</title>{}</svg>'
    ).format(_LEFT + keys * (_CELL + 1), height, title, Markup("").join(parts))
