"""`attnfuzz import`: a case from a dump of production calls."""

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

import click
from rich.text import Text

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.cli.flashinfer.answers import DumpAnswer, DumpedCall, Imported
from attnfuzz.harness.cli.terminal import BadInput, Terminal, answer, echo, is_quiet, new_table, print_line, warn
from attnfuzz.harness.dumps.case_of_call import importable, make_case
from attnfuzz.harness.dumps.contents import Contents
from attnfuzz.harness.dumps.find_calls import chosen_call, read_dump, with_earlier
from attnfuzz.harness.dumps.object_case import is_run_of, make_object_case
from attnfuzz.harness.dumps.recorded import DumpError, RecordedCall
from attnfuzz.harness.dumps.understood import breaches_of, form_of
from attnfuzz.harness.dumps.wrapper_calls import as_function, function_of
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.reference import case_file

_WIDEST = 100
"""Maximum width of a text in columns, for readability."""


def import_dump(
    *,
    folder: Path,
    listing: bool,
    number: int | None,
    earlier: int,
    contents: str,
    backend: str | None,
    seed: int,
    output: Path | None,
) -> None:
    """Write a case that is made of a call of a dump, or list its calls."""
    dump = read_dump(folder)
    for trouble in dump.unreadable:
        warn(f"Skipped: {trouble}")
    if not dump.calls:
        raise BadInput(f"no call of {folder} can be read")
    if listing:
        dumped = tuple(_dumped(index, call) for index, call in enumerate(dump.calls))
        answer(DumpAnswer(calls=dumped))
        _list(dump.calls, dumped)
        return
    chosen = None if backend is None else resolve(backend)

    def runs(call: RecordedCall) -> bool:
        has = importable() if chosen is None else chosen.ops
        return function_of(call) in has or (chosen is not None and is_run_of(call, chosen))

    index = chosen_call(dump.calls, number, runs)
    recorded = with_earlier(dump.calls, index, earlier, runs)
    if chosen is not None and is_run_of(recorded[-1], chosen):
        lives = [call for call in recorded if is_run_of(call, chosen)]
        case, breaches = make_object_case(dump.calls, lives, chosen, contents=Contents(contents), seed=seed)
    else:
        calls = [as_function(dump.calls, call) for call in recorded]
        case = make_case(*calls, backend=backend, contents=Contents(contents), seed=seed)
        breaches = breaches_of(calls[-1])
    path = output or Path(f"{case.calls[-1].op}-{case_file.case_id(case)}.json")
    case_file.save(path, case)
    nbytes = sum(buffer.size * buffer.dtype.itemsize for buffer in case.buffers)
    size = f"{count(len(case.calls), 'call')} on {count(len(case.buffers), 'buffer')} of {nbytes:,} bytes"
    broken = tuple(f"{breach.text} ({breach.source})" for breach in breaches)
    answer(
        Imported(
            case=str(path),
            call=index + 1,
            calls=len(case.calls),
            buffers=len(case.buffers),
            bytes=nbytes,
            notes=case.notes,
            breaches=broken,
        )
    )
    if is_quiet():
        print_line(Terminal(), str(path))
        return
    echo(f"Imported call {index + 1} of {len(dump.calls)} into {path}: {size}.\n")
    judged = [f"Its caller broke the contract: {breach}." for breach in broken]
    terminal = Terminal()
    width = min(terminal.width, _WIDEST) if terminal.is_terminal else terminal.width
    for sentence in (*case.notes, *(judged or ["Its caller broke no known precondition."])):
        echo(click.wrap_text(sentence, width, "- ", "  "))
    echo("\nNext:")
    for command in ("triage", "shrink", "export"):
        echo(f"  attnfuzz {command} {shlex.quote(str(path))}")


def _dumped(index: int, call: RecordedCall) -> DumpedCall:
    breaches: tuple[str, ...] | None = None
    if call.function in ENTRY_POINTS:
        with contextlib.suppress(DumpError):
            breaches = tuple(f"{breach.text} ({breach.source})" for breach in breaches_of(call))
    return DumpedCall(call=index + 1, function=call.function, status=call.status, breaches=breaches)


def _list(calls: Sequence[RecordedCall], dumped: Sequence[DumpedCall]) -> None:
    table = new_table("call", "function", "status", "query", "keys", "breaches", numbers=("call", "breaches"))
    for call, seen in zip(calls, dumped, strict=True):
        function = call.function if call.self_id is None else f"{call.function} (of object {call.self_id:#x})"
        forms = (form_of(call, "query", "q"), form_of(call, "kv_cache", "paged_kv_cache", "key", "k"))
        unknown = "?" if call.function in ENTRY_POINTS else ""
        breaches = unknown if seen.breaches is None else str(len(seen.breaches))
        cells = (str(seen.call), function, call.status, *forms, breaches)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Terminal().print(table)
