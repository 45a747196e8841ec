"""The calls of a case as the text of one Python function: buffers, calls, and expected results."""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.literal_buffers import requested_by
from attnfuzz.harness.export.library_source import LibrarySource
from attnfuzz.harness.export.python_source import WIDTH, packed_lines, quoted, variables
from attnfuzz.harness.memory.allocation import dense_stride
from attnfuzz.kernels.interface.library_call import LibraryCall
from attnfuzz.reference.call_validity import is_parameter
from attnfuzz.reference.calls import (
    NUMBERS,
    REPLAY,
    Argument,
    Buffer,
    Call,
    CallAnswer,
    CallCase,
    ExpectedLists,
    ExpectedTensor,
    ExpectedWrite,
    View,
    content_of,
    named_views,
    pack,
)
from attnfuzz.reference.case import Outputs
from attnfuzz.reference.dtypes import DType

_TAKEN = frozenset(
    {
        "before",
        "compare",
        "elements",
        "filled",
        "hollow",
        "inf",
        "memory",
        "nan",
        "normal",
        "packed",
        "put",
        "strided",
        "torch",
    }
    | {"compare_cache", "compare_lists", "compare_tensor", "result"}
)
"""Names that a script defines and the function uses: buffers get others."""

MOST_RUNS = 6
"""Maximum number of runs of equal elements for which content is written as runs."""

MOST_NUMBERS = 256
"""Maximum number of integers for which content is written as a list of numbers."""


MOST_LIMITS = 1 << 14
"""Maximum number of limits that a script has in fp32."""


class ScriptContents:
    """The contents of one script, as calls of its functions; `packed` has the bits of long ones, as text."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self.packed: dict[str, str] = {}

    def source(self, buffer: Buffer, key: str) -> str:
        """Return an expression for the content of a buffer or a write; `key` names it if it is packed."""
        dtype = buffer.dtype.torch_dtype
        if buffer.drawn is not None:
            drawn = buffer.drawn
            scale = "" if (drawn.mean, drawn.std) == (0.0, 1.0) else f", mean={drawn.mean}, std={drawn.std}"
            return f"normal({buffer.size}, seed={drawn.seed}{scale})"
        content = content_of(buffer)
        if content is None:
            return self._unwritten(buffer)
        if not buffer.size:
            return "[]"
        values, counts = _runs(content, buffer.dtype)
        if not dtype.is_floating_point and content.numel() <= MOST_NUMBERS and content.numel() <= 8 * len(counts):
            return repr([int(value) for value in content.tolist()])
        # A script's numbers become fp32 first.
        narrow = buffer.dtype is not DType.FLOAT64 or torch.equal(
            values.nan_to_num(), values.nan_to_num().float().double()
        )
        if len(counts) <= MOST_RUNS and narrow:
            runs = zip(counts.tolist(), values.tolist(), strict=True)
            return f"filled({', '.join(f'({count}, {value!r})' for count, value in runs)})"
        self.packed[key] = pack(ctypes.string_at(content.data_ptr(), content.nbytes))
        return f"packed({quoted(key)})"

    def numbers(self, tensor: torch.Tensor, key: str) -> str:
        """Return an expression for fp64 numbers [n], in fp32 or, if they are many, rounded to the nearest of bf16."""
        dtype = DType.INT64 if tensor.dtype == torch.int64 else DType.FLOAT32
        if dtype is DType.FLOAT32 and tensor.numel() > MOST_LIMITS:
            dtype = DType.BFLOAT16
        content = tensor.flatten().to(dtype.torch_dtype)
        data = ctypes.string_at(content.data_ptr(), content.nbytes)
        source = self.source(Buffer(name=key, dtype=dtype, size=content.numel(), bits=pack(data)), key)
        wide = "" if dtype is DType.INT64 else ".double()"
        return f"elements(torch.{dtype.value}, {source}){wide}"

    def _unwritten(self, buffer: Buffer) -> str:
        """Return the content of an output before it is written: NaN, or plausible stale numbers."""
        if not buffer.dtype.torch_dtype.is_floating_point:
            return f"filled(({buffer.size}, 1))"
        if self._outputs is Outputs.POISONED:
            return f"filled(({buffer.size}, nan))"
        return f"normal({buffer.size}, seed=0)"


def _runs(content: torch.Tensor, dtype: DType) -> tuple[torch.Tensor, torch.Tensor]:
    """Run-length encode elements: the value of each run, and its length."""
    # By bits, so that different zeros or NaNs don't merge.
    values, counts = torch.unique_consecutive(content.view(dtype.bits), return_counts=True)
    numbers = values.view(dtype.torch_dtype)
    if dtype.torch_dtype.is_floating_point:
        numbers = numbers.double()
    return numbers, counts


@dataclass(frozen=True)
class Dialect:
    """A target's way to call: `names` maps ops to functions, `adapt` changes an argument's text by its name.

    `before` and `after` are lines to run before and after each call, "" for none. Ops in `libraries` are called as
    these say.
    """

    names: dict[str, str]
    libraries: Mapping[str, LibraryCall] = field(default_factory=dict)
    adapt: Callable[[str, str], str] = lambda _, text: text
    before: str = ""
    after: str = ""


def body_of(
    calls: CallCase,
    dialect: Dialect,
    contents: ScriptContents,
    *,
    has_lse: bool = False,
    left_out: Iterable[str] = (),
    run: str = "",
) -> str:
    """Return the body of a function that makes some calls, indented by four spaces; `contents` gets their contents.

    The LSE is compared if `has_lse`; buffers `left_out` are not created. With the name of a `run`, of several, the
    function returns out and lse instead of comparing them.
    """
    return _Writer(calls, dialect, contents, has_lse=has_lse, run=run).body(frozenset(left_out))


class _Writer:
    def __init__(self, calls: CallCase, dialect: Dialect, contents: ScriptContents, *, has_lse: bool, run: str) -> None:
        self._calls, self._dialect, self._has_lse, self._run = calls, dialect, has_lse, run
        self._contents = contents
        self._buffers = {buffer.name: buffer for buffer in calls.buffers}
        taken = _TAKEN | set(dialect.names.values())
        self._variables = variables(self._buffers, taken, _arguments_of(calls.calls))
        made = dict.fromkeys(name for call in calls.calls for name in (call.makes, call.graph) if name)
        named = variables(made, taken | set(self._variables.values()))
        self._library = LibrarySource(dialect.libraries, named, self._literal, self._copies)

    def body(self, left_out: frozenset[str]) -> str:
        lines = []
        reached = reached_by(self._calls.calls)
        for buffer in self._calls.buffers:
            if buffer.name in reached and buffer.name not in left_out:
                lines += self._made(buffer)
        # No call can change a cache that none of them gets.
        written = [each for each in self._calls.written if each.view.buffer in reached]
        if written:
            caches = [f"{self._view(each.view)}.clone()," for each in written]
            lines += ["    before = [", *(f"        {each}" for each in caches), "    ]"]
        numbered = enumerate(self._calls.calls)
        for graph, some in groupby(numbered, key=lambda each: "" if each[1].op == REPLAY else each[1].graph):
            called: list[str] = []
            for index, call in some:
                # Writes between captured calls are not captured.
                (lines if graph else called).extend(self._writes(call.writes, f"before call {index}"))
                called += self._call(call)
            lines += self._library.captured(graph, called) if graph else called
        if self._calls.answer is not None:
            lines += self._writes(self._calls.answer.writes, "after the calls")
            lines += self._results(self._calls.answer) if self._run else self._answer(self._calls.answer, reached)
        if written:
            lines += self._caches(written)
        expected = [each for each in self._calls.expected if each.view.buffer in reached]
        lists = [each for each in self._calls.lists if each.view.buffer in reached]
        if expected or lists:
            lines += self._tensors(expected, lists)
        return "\n".join(lines)

    def _writes(self, writes: Iterable[Buffer], when: str) -> list[str]:
        lines = []
        for number, write in enumerate(writes):
            key = self._key(f"{write.name} {when}{f' ({number})' if number else ''}")
            content = self._contents.source(write, key)
            lines += _filled(f"    put({self._variables[write.name]}, {write.offset}, ", content, ")")
        return lines

    def _call(self, call: Call) -> list[str]:
        runs = not call.graph or call.op == REPLAY
        around = self._dialect.before, self._dialect.after
        before, after = ([f"    {line}"] if line and runs else [] for line in around)
        if self._library.has(call):
            return [*([] if call.makes else before), *self._library.lines(call), *after]
        arguments = []
        for name, value in call.arguments.items():
            if name in call.returned:
                continue
            text = self._argument(name, value)
            # Names from a file may not be identifiers.
            arguments.append(f"{name}={text}" if is_parameter(name) else f"**{{{name!r}: {text}}}")
        result = "result = " if call.returned else ""
        lines = [f"    {result}{self._dialect.names[call.op]}(", *packed_lines(arguments, " " * 8), "    )"]
        return [*before, *lines, *self._copies(call), *after]

    def _copies(self, call: Call) -> Iterator[str]:
        """Yield copies of the outputs that a call returns, alone or as a pair."""
        for name in call.returned:
            view = call.arguments[name]
            assert isinstance(view, View)
            part = "result[1]" if name == "lse" else "(result[0] if isinstance(result, tuple) else result)"
            yield f"    {self._view(view)}.copy_({part})"

    def _made(self, buffer: Buffer) -> list[str]:
        """Return the lines that create a buffer; one with a hole has content outside of it alone."""
        made = f"    {self._variables[buffer.name]} = "
        start, dtype, key = quoted(buffer.name), f"torch.{buffer.dtype.value}", self._key(buffer.name)
        if buffer.hole is None:
            return _filled(f"{made}memory({start}, {dtype}, ", self._contents.source(buffer, key), ")")
        first, end = buffer.hole
        solid = replace(buffer, size=buffer.size - (end - first), hole=None)
        content = self._contents.source(solid, key)
        return _filled(f"{made}hollow({start}, {dtype}, {buffer.size}, ({first}, {end}), ", content, ")")

    def _key(self, name: str) -> str:
        """Return the name of some contents."""
        return f"{name}, {self._run} run" if self._run else name

    def _results(self, answer: CallAnswer) -> list[str]:
        has_lse = answer.lse is not None and self._has_lse
        return [f"    return {self._view(answer.out)}, {self._view(answer.lse) if answer.lse and has_lse else None}"]

    def _answer(self, answer: CallAnswer, reached: set[str]) -> list[str]:
        """Return the lines that call compare(), and those of the buffers that no kernel gets."""
        lines = []
        # A request without queries has no rows.
        requests = [request for request in answer.requests if request.query.shape[0]]
        truths = [view for request in requests for view in (request.query, request.key, request.value)]
        truths += [request.mask for request in requests if request.mask is not None]
        truths += [] if answer.sinks is None else [answer.sinks]
        lines += self._elements(view.buffer for view in truths if view.buffer not in reached)
        results = [self._view(answer.out)]
        if answer.lse is not None and self._has_lse:
            results.append(f"lse={self._view(answer.lse)}")
        if answer.sinks is not None:
            results.append(f"sinks={self._view(answer.sinks)}")
        results += [f"bmm1_scale={answer.bmm1_scale}", f"bmm2_scale={answer.bmm2_scale}"]
        results += [f"window_left={answer.window_left}"] if answer.window_left >= 0 else []
        results += [f"soft_cap={answer.soft_cap}"] if answer.soft_cap else []
        lines += ["    return compare(", *packed_lines(results, " " * 8)]
        if requests:
            masked = any(request.mask is not None for request in requests)
            parts = (
                "its queries, all its keys and values, and its mask"
                if masked
                else "its queries, and all its keys and values"
            )
            lines.append(f"        requests=[  # the first row of its output, {parts}")
            for request in requests:
                views = ", ".join(map(self._view, (request.query, request.key, request.value)))
                views += f", {self._view(request.mask)}" if request.mask is not None else ""
                lines.append(f"            ({request.first_row}, {views}),")
            lines.append("        ],")
        return [*lines, "    )"]

    def _elements(self, names: Iterable[str]) -> list[str]:
        """Return the lines that create buffers that no kernel gets."""
        lines = []
        for name in dict.fromkeys(names):
            buffer = self._buffers[name]
            content = self._contents.source(buffer, name)
            lines += _filled(f"    {self._variables[name]} = elements(torch.{buffer.dtype.value}, ", content, ")")
        return lines

    def _caches(self, written: Iterable[ExpectedWrite]) -> list[str]:
        """Return the lines that call compare_cache(), and those of the expected contents."""
        lines, calls = [], []
        for index, each in enumerate(written):
            truths = [each.places, each.low, each.high, each.free]
            lines += self._elements(view.buffer for view in truths if view is not None)
            views = ["None" if view is None else self._view(view) for view in (each.view, *truths)]
            arguments = ", ".join([quoted(each.name), f"before[{index}]", *views])
            calls.append(f"        compare_cache({arguments}),")
        comment = "    # Of each new token: page, slot, request and token, then its least and greatest values."
        return [*lines, comment, "    wrong = [", *calls, "    ]", "    return any(wrong)"]

    def _tensors(self, expected: Iterable[ExpectedTensor], lists: Iterable[ExpectedLists]) -> list[str]:
        """Return the lines that call compare_tensor() and compare_lists(), and those of the right contents."""
        lines, calls = [], []
        for each in expected:
            views = [view for view in (each.view, each.right, each.bound) if view is not None]
            lines += self._elements(view.buffer for view in views[1:])
            calls.append(f"        compare_tensor({', '.join([quoted(each.name), *map(self._view, views)])}),")
        for some in lists:
            views = [view for view in (some.view, some.scores, some.lengths, some.names) if view is not None]
            lines += self._elements(view.buffer for view in views[1:])
            calls.append(f"        compare_lists({', '.join([quoted(some.name), *map(self._view, views)])}),")
        # Lists have the scores to choose from instead.
        explained = ["    # A result, the right one, and the largest error of a right kernel."] if expected else []
        return [*lines, *explained, "    wrong = [", *calls, "    ]", "    return any(wrong)"]

    def _argument(self, name: str, value: Argument) -> str:
        return self._dialect.adapt(name, self._literal(value))

    def _literal(self, value: Argument) -> str:
        if isinstance(value, list):
            items = [self._view(item) for item in value]
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if isinstance(value, str) and value in NUMBERS:
            return value
        return self._view(value) if isinstance(value, View) else quoted(value)

    def _view(self, view: View) -> str:
        """Return a tensor in a buffer; offsets are in elements."""
        text = self._in_buffer(view)
        return f"{text}.cpu()" if self._buffers[view.buffer].host else text

    def _in_buffer(self, view: View) -> str:
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


def _arguments_of(calls: Iterable[Call]) -> dict[str, str]:
    """Return the argument that first gets each buffer that is named after a line of source."""
    named = [(view.buffer, name) for call in calls for name, view in named_views(call.arguments)]
    return {buffer: name for buffer, name in reversed(named) if requested_by(buffer)}


def reached_by(calls: Iterable[Call]) -> set[str]:
    """Return the names of the buffers that are passed to these calls."""
    return {view.buffer for call in calls for _, view in named_views(call.arguments)}


def _filled(opening: str, content: str, closing: str) -> list[str]:
    """Return one line, or several if it is too long and the content is a list."""
    line = f"{opening}{content}{closing}"
    if len(line) <= WIDTH or not content.startswith("["):
        return [line]
    numbers = packed_lines(content[1:-1].split(", "), " " * 8)
    return [f"{opening}[", *numbers, f"    ]{closing}"]
