"""Source of calls of a library's functions and classes, on objects and graphs that a script has in variables."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from attnfuzz.harness.export.python_source import packed_lines, quoted
from attnfuzz.kernels.interface.library_call import Action, LibraryCall
from attnfuzz.reference.calls import REPLAY, Argument, Call
from attnfuzz.reference.dtypes import DType

_DTYPES = frozenset(f"torch.{dtype.value}" for dtype in DType)

COPY_RESULTS, FILL_WORKSPACES, ON_OWN_STREAM = "copy_results", "fill_workspaces", "on_own_stream"
"""Functions that such calls need beside those of the library."""


class LibrarySource:
    """Writes calls of `libraries`, by op. `variables` are those of objects and graphs; `argument` writes arguments.

    `copies` writes the lines that copy a `result` to the outputs that a call returns.
    """

    def __init__(
        self,
        libraries: Mapping[str, LibraryCall],
        variables: Mapping[str, str],
        argument: Callable[[Argument], str],
        copies: Callable[[Call], Iterable[str]],
    ) -> None:
        self._libraries, self._variables = libraries, variables
        self._argument, self._copies = argument, copies

    def has(self, call: Call) -> bool:
        """Return whether it writes this call."""
        return call.op == REPLAY or call.op in self._libraries

    def lines(self, call: Call) -> list[str]:
        """Return the lines of a call, indented by four spaces."""
        if call.op == REPLAY:
            return [f"    {self._variables[call.graph]}.replay()"]
        library, target = self._libraries[call.op], f"{self._variables[call.makes]} = " if call.makes else ""
        owner = self._variables[call.on] if call.on else ""
        if library.action is Action.COPY:
            return [f"    {target}copy.copy({owner})"]
        if library.action is Action.FILL:
            return [f"    {FILL_WORKSPACES}({owner}, {quoted(library.filled)})"]
        if library.results or call.returned:
            target = "result = "
        function = f"{owner}.{library.method}" if library.action is Action.METHOD else library.name
        opening = f"{ON_OWN_STREAM}({function}, " if call.apart else f"{function}("
        arguments = list(self._arguments(call, library))
        lines = [f"    {target}{opening}", *packed_lines(arguments, " " * 8), "    )"]
        if library.results:
            results = ", ".join(self._argument(call.arguments[name]) for name in library.results)
            lines.append(f"    {COPY_RESULTS}(result, {results})")
        return [*lines, *self._copies(call)]

    def captured(self, name: str, lines: Iterable[str]) -> list[str]:
        """Return the lines that capture some into a graph."""
        graph = self._variables[name]
        return [
            f"    {graph} = torch.cuda.CUDAGraph()",
            f"    with torch.cuda.graph({graph}):",
            *(f"    {line}" for line in lines),
        ]

    def _arguments(self, call: Call, library: LibraryCall) -> Iterator[str]:
        """Yield the arguments that are passed: those by position first. None is the default of optional ones."""
        left_out = {*call.held, *library.results, *call.returned}
        given = {name: value for name, value in call.arguments.items() if name not in left_out and value is not None}
        if (gathered := library.gathered) is not None:
            parts = ", ".join(f"{name}={self._text(name, given.pop(name))}" for name in gathered.parts if name in given)
        yield from (self._text(name, given.pop(name)) for name in library.positional if name in given)
        if gathered is not None:
            yield f"{gathered.name}={gathered.maker}({parts})"
        yield from (f"{name}={quoted(value)}" for name, value in library.constant)
        yield from (f"{name}={self._text(name, value)}" for name, value in given.items())

    def _text(self, name: str, value: Argument) -> str:
        if isinstance(value, str) and value in _DTYPES:
            return value
        if name == "device" and isinstance(value, str):
            return "DEVICE"
        return self._argument(value)


def needed_functions(calls: Iterable[Call], libraries: Mapping[str, LibraryCall]) -> set[str]:
    """Return the names of the functions above that some calls need."""
    needed = set()
    for call in calls:
        if (library := libraries.get(call.op)) is None:
            continue
        needed |= {FILL_WORKSPACES} if library.action is Action.FILL else set()
        needed |= {ON_OWN_STREAM} if call.apart else set()
        needed |= {COPY_RESULTS} if library.results else set()
    return needed


def imported_names(calls: Iterable[Call], libraries: Mapping[str, LibraryCall]) -> dict[str, set[str]]:
    """Return the names that some calls need from the library, by module."""
    names: dict[str, set[str]] = {}
    for library in {libraries[call.op] for call in calls if call.op in libraries}:
        found = names.setdefault(library.module, set())
        if not library.takes_object:
            found.add(library.name.partition(".")[0])
        if library.gathered is not None:
            found.add(library.gathered.maker.partition(".")[0])
    return {module: found for module, found in names.items() if found}
