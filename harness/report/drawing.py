"""A case as a picture: each step's batch, pages and padding, the pool, and the failure."""

from collections.abc import Sequence

from markupsafe import Markup

from attnfuzz.harness.report.batch_rows import BatchRow, Elided, Failing, batch_rows, failing, shown
from attnfuzz.harness.report.misread_keys import Misread, in_words, misread_keys
from attnfuzz.harness.report.page_pool import HELD, PagePool
from attnfuzz.harness.report.svg import CHARACTER, Picture
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference.case import Case, Launch, Request, Step

WIDTH = 760
_QUERIES, _KEYS = 146.0, 292.0
"""Left edges of the columns of queries and keys; row names come first."""

_QUERY_ROOM, _KEY_ROOM = _KEYS - _QUERIES - 16, 360.0
_ROW, _BAR, _LINE = 30.0, 18.0, 13.0
_MOST_STEPS = 6
_MOST_CELLS = 14


def draw_case(case: Case, observation: Observation | None = None) -> Markup:
    """Draw `case` as SVG, with the failure of `observation` marked."""
    where = failing(case, observation) if observation is not None else Failing(-1)
    drawing = _Drawing(case, where)
    top = 0.0
    for index in _steps_shown(len(case.steps), where.step):
        if index is None:
            drawing.picture.text(0, top + 12, f"... {len(case.steps)} steps in all", "dim")
            top += 22
        else:
            top = drawing.step(index, top)
    drawing.picture.height = drawing.pool.draw(drawing.picture, top + 4) + 2
    return drawing.picture.markup()


def _steps_shown(number: int, failed: int) -> list[int | None]:
    """Choose the steps to draw, None for a gap: the first, the last, and those up to the failing one."""
    if number <= _MOST_STEPS:
        return list(range(number))
    keep = sorted({0, 1, number - 1, *(step for step in (failed - 1, failed) if step >= 0)})
    result: list[int | None] = []
    for step in keep:
        if result and step != (result[-1] or 0) + 1:
            result.append(None)
        result.append(step)
    return result


class _Drawing:
    """The picture of one case while it is drawn from top to bottom."""

    def __init__(self, case: Case, where: Failing) -> None:
        self.case = case
        self.where = where
        wrong_page = where.keys.page if where.keys is not None else None
        self.pool = PagePool(case, None if wrong_page is None else wrong_page[1])
        self.picture = Picture(WIDTH, _label(case, where), minimum=620)
        requests = [request for step in case.steps for request in step.requests]
        longest = max((request.kv_len for request in requests), default=1)
        reach = max(-(-longest // self.pool.size), 1) * self.pool.size
        self._key = min(14.0, _KEY_ROOM / reach)
        most = max((row.padding for step in case.steps for row in batch_rows(step)), default=1)
        most = max([most, 1, *(request.q_len for request in requests)])
        self._query = min(12.0, _QUERY_ROOM / most)

    def step(self, index: int, top: float) -> float:
        """Draw a step from `top` on; return its lower end."""
        step = self.case.steps[index]
        rows = batch_rows(step)
        marked = [at for at, row in enumerate(rows) if self.where.marks(index, row.index, real=row.request is not None)]
        top = self._heading(index, step, top)
        for row in shown(rows, marked):
            if isinstance(row, Elided):
                self.picture.text(_QUERIES, top + 13, row.words, "dim")
                top += 20
                continue
            wrong = self.where.marks(index, row.index, real=row.request is not None)
            misread = misread_keys(self.where.keys, self.pool.size) if wrong and self.where.keys is not None else []
            height = _ROW + _LINE * len(misread)
            if wrong:
                self.picture.rect(0, top - 3, WIDTH, height - 2, "wrong-row")
                self.picture.rect(0, top - 3, 4, height - 2, "wrong-edge")
            self._row(step, row, top, wrong=wrong)
            self._misread(misread, top)
            top += height
        if self.where.step == index and self.where.fault is not None:
            top = self._fault(self.where.fault, top)
        return top + 10

    def _heading(self, index: int, step: Step, top: float) -> float:
        title = f"step {index}: {step.mode}"
        if step.tokens_per_request > 1:
            title += f" of {step.tokens_per_request}"
        classes = "strong wrong-text" if self.where.step == index else "strong"
        self.picture.text(0, top + 13, title, classes)
        x = len(title) * CHARACTER + 12
        self.picture.rect(x, top + 1, len(step.launch) * CHARACTER + 12, 16, f"badge {step.launch}")
        self.picture.text(x + 6, top + 13, step.launch, "badge-text")
        self.picture.text(x + len(step.launch) * CHARACTER + 22, top + 13, _padding_words(step), "dim")
        top += 24
        self.picture.text(_QUERIES, top + 8, "query tokens", "dim small")
        self.picture.text(_KEYS, top + 8, "keys in pages, by page id", "dim small")
        return top + 16

    def _row(self, step: Step, row: BatchRow, top: float, *, wrong: bool) -> None:
        request = row.request
        if request is None:
            self.picture.text(10, top + 9, f"padded row {row.index}" if row.index >= 0 else "padding", "dim")
            self.picture.text(10, top + 21, "no request" if row.index >= 0 else "in no row", "dim small")
            self._queries(0, row.padding, top, wrong=wrong)
            return
        moved = f", slot {request.slot}" if request.slot != row.index else ""
        self.picture.text(10, top + 9, f"request {row.index}{moved}")
        self.picture.text(10, top + 21, f"q {request.q_len:,}, kv {request.kv_len:,}", "dim small")
        self._queries(request.q_len, 0, top, wrong=wrong)
        end = self._keys(request, top)
        self._beyond(step, request, end, top)

    def _queries(self, real: int, padding: int, top: float, *, wrong: bool) -> None:
        """Draw query tokens as squares, or as a bar if there are too many."""
        x, size = _QUERIES, self._query
        if not real + padding:
            self.picture.text(x, top + 13, "no queries", "dim small")
        if size >= 4:
            for token in range(real + padding):
                at = x + token * size
                self.picture.rect(at, top, size - 1.5, _BAR, "query" if token < real else "padding")
        else:
            self.picture.rect(x, top, max(real * size, 2.0 * bool(real)), _BAR, "query")
            self.picture.rect(x + real * size, top, max(padding * size, 2.0 * bool(padding)), _BAR, "padding")
        if wrong and self.where.token is not None and self.where.token < real:
            title = f"token {self.where.token}, head {self.where.head}"
            self.picture.rect(x + self.where.token * size, top, max(size - 1.5, 3.0), _BAR, "wrong-token", title=title)

    def _keys(self, request: Request, top: float) -> float:
        """Draw a request's pages, filled up to its last key; return their right end."""
        size, unit = self.pool.size, self._key
        if not request.kv_len:
            self.picture.rect(_KEYS, top, 64, _BAR, "empty")
            self.picture.text(_KEYS + 9, top + 13, "no keys", "on")
            return _KEYS + 64
        tint, freed = self.pool.tint(request.slot), self.pool.left(request)
        pages = self.pool.pages[request.slot][: -(-request.kv_len // size)]
        end = _KEYS + len(pages) * size * unit
        if size * unit < 5:
            words = count(len(pages), "page")
            title = f"{words}: {', '.join(map(str, pages[:_MOST_CELLS]))}"
            if len(pages) > _MOST_CELLS:
                title += f", and {len(pages) - _MOST_CELLS:,} more"
            self.picture.rect(_KEYS, top, max(request.kv_len * unit, 2.0), _BAR, f"page {tint}", title=title)
            self.picture.text(end + 6, top + 13, words, "dim small")
            end += len(words) * CHARACTER + 8
        else:
            for position, page in enumerate(pages):
                if position < freed:
                    self._left(page, position, top)
                else:
                    self._page(page, position, request.kv_len, tint, top)
        own = min(request.q_len, request.kv_len) * unit
        if own:
            left = _KEYS + request.kv_len * unit - own
            self.picture.rect(left, top + _BAR + 1.5, max(own, 1.0), 2.5, "own-keys")
        return end

    def _misread(self, misread: Sequence[Misread], top: float) -> None:
        """Mark the keys that the failing token reads or skips by mistake, with a line of words for each kind."""
        for line, (kind, words, runs) in enumerate(misread):
            for first, end in runs:
                # Keys beyond the longest request are drawn at the right edge.
                x = min(_KEYS + first * self._key, WIDTH - 3.0)
                width = min(max((end - first) * self._key, 3.0), WIDTH - x)
                self.picture.rect(x, top - 1.5, width, _BAR + 3, kind, title=f"{words} {_named(first, end)}")
            text = f"{words} {in_words([_named(*run) for run in runs])}"
            self.picture.text(_KEYS, top + _BAR + 14 + line * _LINE, text, "wrong-text small")

    def _left(self, page: int, position: int, top: float) -> None:
        size, unit = self.pool.size, self._key
        title = f"keys {position * size} to {(position + 1) * size - 1} have left the window; page {page} is free"
        self.picture.rect(_KEYS + position * size * unit, top, size * unit - 1.5, _BAR, "nan", title=title)

    def _page(self, page: int, position: int, kv_len: int, tint: str, top: float) -> None:
        size, unit = self.pool.size, self._key
        x, used = _KEYS + position * size * unit, min(size, kv_len - position * size)
        if used < size:
            held = HELD[self.pool.case.pages.behind]
            title = f"page {page}: {size - used} of {size} slots are past the end of the request, and hold {held}"
            self.picture.rect(x + used * unit, top, (size - used) * unit - 1.5, _BAR, "nan", title=title)
        title = f"page {page}: keys {position * size} to {position * size + used - 1}"
        self.picture.rect(x, top, used * unit - (1.5 if used == size else 0.0), _BAR, f"page {tint}", title=title)
        self.picture.rect(x, top, size * unit - 1.5, _BAR, "page-edge")
        room = size * unit - 1.5
        if len(str(self.pool.poison)) * CHARACTER <= room:
            label = str(page)
            self.picture.text(x + (room - len(label) * CHARACTER) / 2, top + 13, label, "on")

    def _beyond(self, step: Step, request: Request, end: float, top: float) -> None:
        """Draw the page table's tail past a request's pages, and unusual lengths."""
        if self.pool.has_tail(step, request):
            tail, words = self.pool.tail
            width = len(tail) * CHARACTER + 8
            title = f"the rest of the page table holds {words}"
            # Beside the number of thousands of pages, there may be too little room.
            x = min(end + 4, WIDTH - width)
            self.picture.rect(x, top, width, _BAR, "tail", title=title)
            self.picture.text(x + 4, top + 13, tail, "dim on")
            end = x + width
        if 0 < request.kv_len < request.q_len and end < WIDTH - 160:
            self.picture.text(end + 8, top + 13, "fewer keys than queries", "dim small")

    def _fault(self, seen: Observation, top: float) -> float:
        """Draw the tensor's elements at which a launch faulted, with the accessed one."""
        assert seen.access is not None
        hit, size = seen.access.index or 0, seen.access.size or 0
        self.picture.text(10, top + 13, seen.place, "wrong-text")
        x = max(_QUERIES, len(seen.place) * CHARACTER + 22)
        cells = sorted({*range(min(size, _MOST_CELLS)), hit})
        previous = cells[0] - 1
        for index in cells:
            if index != previous + 1:
                self.picture.text(x + 1, top + 13, "...", "dim")
                x += 22
            previous = index
            label = str(index)
            cell = max(22.0, len(label) * CHARACTER + 8)
            classes = ("cell" if 0 <= index < size else "outside") + (" hit" if index == hit else "")
            self.picture.rect(x, top, cell - 2, _BAR, classes)
            self.picture.text(x + (cell - 2 - len(label) * CHARACTER) / 2, top + 13, label, "on")
            x += cell
        words = f"{count(size, 'element')}; the access is at index {hit:,}"
        self.picture.text(_QUERIES, top + _BAR + 13, words, "dim small")
        return top + _BAR + 22


def _named(first: int, end: int) -> str:
    return f"key {first:,}" if end - first == 1 else f"keys {first:,} to {end - 1:,}"


def _padding_words(step: Step) -> str:
    if step.launch is Launch.CAPTURE:
        return f"recorded on padding alone, for {count(step.padded_batch, 'row')}"
    real = f"{count(len(step.requests), 'request')}, {count(step.tokens, 'query token')}"
    if not step.padded:
        return real
    rows = f"{count(step.padded_batch, 'row')}, " if step.padded_batch > len(step.requests) else ""
    return f"{real}; padded to {rows}{count(step.padded_tokens, 'query token')}"


def _label(case: Case, where: Failing) -> str:
    steps = f"{count(len(case.steps), 'step')} for {case.backend}"
    if where.step < 0:
        return f"A case of {steps}"
    row = "" if where.row is None else f", row {where.row} of the batch"
    return f"A case of {steps}; the failure is in step {where.step}{row}"
