"""The calls of a case as the text of one Python function: its buffers, the calls, and what they should have given."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attnfuzz.harness.export.contents import ScriptContents
from attnfuzz.harness.export.literals import quoted
from attnfuzz.harness.export.names import variables
from attnfuzz.harness.memory.allocation import dense_stride
from attnfuzz.reference.call_bounds import is_parameter
from attnfuzz.reference.calls import Argument, Buffer, Call, CallAnswer, CallCase, Expected, View, named_views

WIDTH = 100
"""Lines are filled up to so many characters, but never broken inside of an item."""

_TAKEN = frozenset(
    {"compare", "elements", "filled", "inf", "memory", "nan", "normal", "packed", "put", "strided", "torch"}
)
"""Names that the function uses and a script defines."""


@dataclass(frozen=True)
class Dialect:
    """How a target calls: `names` has what each op is called, `adapt` changes the text of an argument by its name.

    `after` is a line to run after each call, "" for none.
    """

    names: dict[str, str]
    adapt: Callable[[str, str], str] = lambda _, text: text
    after: str = ""


@dataclass(frozen=True)
class Body:
    """`text` is what goes into the function, indented by four spaces; `packed` are the contents that it refers to."""

    text: str
    packed: dict[str, str]


def body_of(calls: CallCase, dialect: Dialect, *, has_lse: bool = False, left_out: Iterable[str] = ()) -> Body:
    """The text for some calls. `has_lse` tells whether the LSE can be compared; buffers `left_out` are not made."""
    return _Writer(calls, dialect, has_lse=has_lse).body(frozenset(left_out))


class _Writer:
    def __init__(self, calls: CallCase, dialect: Dialect, *, has_lse: bool) -> None:
        self._calls, self._dialect, self._has_lse = calls, dialect, has_lse
        self._contents = ScriptContents(calls.outputs)
        self._buffers = {buffer.name: buffer for buffer in calls.buffers}
        self._variables = variables(self._buffers, _TAKEN | set(dialect.names.values()))

    def body(self, left_out: frozenset[str]) -> Body:
        lines = []
        reached = reached_by(self._calls.calls)
        for buffer in self._calls.buffers:
            if buffer.name in reached and buffer.name not in left_out:
                lines += self._memory(buffer)
        for index, call in enumerate(self._calls.calls):
            lines += self._writes(call.writes, f"before call {index}")
            lines += self._call(call)
        if self._calls.answer is None:
            return Body("\n".join(lines), self._contents.packed)
        lines += self._writes(self._calls.answer.writes, "after the calls")
        lines += self._answer(self._calls.answer, reached)
        return Body("\n".join(lines), self._contents.packed)

    def _memory(self, buffer: Buffer) -> list[str]:
        dtype, content = buffer.dtype.value, self._contents.source(buffer, buffer.name)
        opening = f"    {self._variables[buffer.name]} = memory({quoted(buffer.name)}, torch.{dtype}, "
        return _filled(opening, content, ")")

    def _writes(self, writes: Iterable[Buffer], when: str) -> list[str]:
        lines = []
        for number, write in enumerate(writes):
            content = self._contents.source(write, f"{write.name} {when}{f' ({number})' if number else ''}")
            lines += _filled(f"    put({self._variables[write.name]}, {write.offset}, ", content, ")")
        return lines

    def _call(self, call: Call) -> list[str]:
        arguments = [_passed(name, self._argument(name, value)) for name, value in call.arguments.items()]
        after = [f"    {self._dialect.after}"] if self._dialect.after else []
        return [f"    {self._dialect.names[call.op]}(", *_packed_lines(arguments, " " * 8), "    )", *after]

    def _answer(self, answer: CallAnswer, reached: set[str]) -> list[str]:
        """What compare() is given; what no kernel sees is made here."""
        lines = []
        # A request without queries has no rows that could be wrong.
        requests = [request for request in answer.requests if request.query.shape[0]]
        truths = [view for request in requests for view in (request.query, request.key, request.value)]
        truths += [] if answer.sinks is None else [answer.sinks]
        for name in dict.fromkeys(view.buffer for view in truths):
            if name not in reached:
                buffer = self._buffers[name]
                content = self._contents.source(buffer, name)
                lines += _filled(f"    {self._variables[name]} = elements(torch.{buffer.dtype.value}, ", content, ")")
        results = [self._view(answer.out)]
        if answer.lse is not None and self._has_lse:
            results.append(f"lse={self._view(answer.lse)}")
        if answer.sinks is not None:
            results.append(f"sinks={self._view(answer.sinks)}")
        results += [f"bmm1_scale={answer.bmm1_scale}", f"bmm2_scale={answer.bmm2_scale}"]
        results += [f"window_left={answer.window_left}"] if answer.window_left >= 0 else []
        results += [f"soft_cap={answer.soft_cap}"] if answer.soft_cap else []
        lines += ["    return compare(", *_packed_lines(results, " " * 8)]
        if requests:
            lines.append("        requests=[  # the first row of its output, its queries, and all its keys and values")
            lines += [f"            ({self._request(request)})," for request in requests]
            lines.append("        ],")
        return [*lines, "    )"]

    def _request(self, request: Expected) -> str:
        return ", ".join([str(request.first_row), *map(self._view, (request.query, request.key, request.value))])

    def _argument(self, name: str, value: Argument) -> str:
        if isinstance(value, list):
            items = [self._view(item) for item in value]
            text = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        elif isinstance(value, View):
            text = self._view(value)
        else:
            text = quoted(value)
        return self._dialect.adapt(name, text)

    def _view(self, view: View) -> str:
        """A tensor in a buffer; offsets are in elements."""
        buffer, text, size = self._buffers[view.buffer], self._variables[view.buffer], 1
        for extent in view.shape:
            size *= extent
        whole = buffer.size
        if view.dtype is not None:
            text = f"{text}.view(torch.{view.dtype.value})"
            whole = whole * buffer.dtype.itemsize // view.dtype.itemsize
        if view.stride != dense_stride(view.shape):
            return f"strided({text}, {view.shape}, {view.stride}, {view.offset})"
        if (view.offset, size) != (0, whole):
            text = f"{text}[{view.offset}:{view.offset + size}]"
        return text if len(view.shape) == 1 else f"{text}.view({', '.join(map(str, view.shape)) or '()'})"


def _passed(name: str, text: str) -> str:
    """An argument of a call. The names that a case from a file has are parameters; others stay text."""
    return f"{name}={text}" if is_parameter(name) else f"**{{{name!r}: {text}}}"


def reached_by(calls: Iterable[Call]) -> set[str]:
    """The names of the buffers that these calls are handed."""
    return {view.buffer for call in calls for _, view in named_views(call.arguments)}


def _filled(opening: str, content: str, closing: str) -> list[str]:
    """One line, or several if it is too long and the content is a list."""
    line = f"{opening}{content}{closing}"
    if len(line) <= WIDTH or not content.startswith("["):
        return [line]
    numbers = _packed_lines(content[1:-1].split(", "), " " * 8)
    return [f"{opening}[", *numbers, f"    ]{closing}"]


def _packed_lines(items: Iterable[str], indent: str) -> list[str]:
    """As many items in each line as fit, each with a comma after it."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"{indent}{item},")
    return lines
