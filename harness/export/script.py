"""Rendering calls as a stand-alone script: memory, calls, expected results, and kernels."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import jinja2
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.export.body import ScriptContents, body_of, reached_by
from attnfuzz.harness.export.carried import CannotExport, CarriedFile
from attnfuzz.harness.export.judging import judging_of
from attnfuzz.harness.export.python_source import in_docstring, inlined, quoted, source, standard_imports
from attnfuzz.harness.export.runs import Runs
from attnfuzz.harness.export.target import Parts, Target, flashinfer_parts, native_parts
from attnfuzz.harness.files.templates import environment_of
from attnfuzz.harness.memory.poison import poison
from attnfuzz.harness.verdict.failures import DAMAGES, DEATHS, Observation
from attnfuzz.harness.verdict.recurrence import MOST_SECONDS, Recurrence, Rerun
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference import elements
from attnfuzz.reference.calls import REPLAY, CallCase, View, named_views
from attnfuzz.reference.sparse import lists

MAX_BYTES = 64 << 20
"""Maximum total size of the contents that a script includes as text."""


class _Shown(NamedTuple):
    """The calls that a script makes, those of the `first` of two runs that differ, and the failure `seen` in them."""

    calls: CallCase
    first: CallCase | None
    backend: Backend
    seen: Observation | None

    @property
    def deadly(self) -> bool:
        """Whether the failure kills the process."""
        return self.seen is not None and self.seen.kind in DEATHS

    @property
    def hollow(self) -> bool:
        """Whether a buffer has a hole."""
        return any(buffer.hole is not None for buffer in self.calls.buffers)

    @property
    def guarded(self) -> bool:
        """Whether buffers are beside guard pages."""
        return self.seen is None or self.deadly or self.hollow


def render_script(
    case_id: str,
    calls: CallCase,
    seen: Observation | None,
    target: Target,
    recurrence: Recurrence | None = None,
    carry: Sequence[CarriedFile] = (),
    runs: Runs | None = None,
) -> str:
    """Render a script that makes `calls`, and reports whether the failure `seen` in the case `case_id` occurs.

    With a `recurrence`, it repeats them until it occurs or should have. It may include code from the files in `carry`.
    If two `runs` differ, `calls` are those of the second.

    Raises:
        CannotExport: the target lacks a kernel, or the contents are too large.

    """
    shown = _Shown(calls, None if runs is None else runs.first, resolve(calls.backend), seen)
    shown, parts = _adapted(case_id, shown, target, carry)
    contents = ScriptContents(calls.outputs)
    body, judging = _bodies(shown, runs, parts, contents)
    nbytes = sum(map(len, contents.packed.values()))
    if nbytes > MAX_BYTES:
        raise CannotExport(f"its buffers take {nbytes >> 20} MiB, a script carries at most {MAX_BYTES >> 20} MiB")
    rest = _rest(shown, parts, contents, recurrence, body, judging)
    failure = f"{seen.kind}: {seen.place}" if seen else "No failure seen"
    where = f" in {calls.mode}" if calls.mode else ""
    return _template("script.py.j2").render(
        title=in_docstring(f"{failure}, in calls that {calls.backend} made{where}."),
        seen=seen,
        about=(
            *parts.about,
            *_repeated(recurrence),
            f"run() makes the calls{_answered(judging, shown.calls)}.",
            "Exit code: 0 nothing is wrong, 1 the fault shows, 2 it could not run.",
        ),
        notes=calls.notes,
        imports=standard_imports(rest + "\nsys"),
        packages=parts.packages,
        install=parts.install,
        device=parts.device if "DEVICE" in rest else None,
        rest=rest,
    )


def _adapted(case_id: str, shown: _Shown, target: Target, carry: Sequence[CarriedFile]) -> tuple[_Shown, Parts]:
    """Return the calls as the target takes them, and its parts of the script."""
    backend, seen, guarded = shown.backend, shown.seen, shown.guarded
    # Both runs may call different functions.
    both = shown.calls if shown.first is None else replace(shown.calls, calls=shown.first.calls + shown.calls.calls)
    if target is Target.NATIVE:
        return shown, native_parts(case_id, both, backend, seen, guarded=guarded, carry=carry)
    _, parts = flashinfer_parts(case_id, both, backend, seen, guarded=guarded)
    calls, _ = flashinfer_parts(case_id, shown.calls, backend, seen, guarded=guarded)
    first = shown.first and flashinfer_parts(case_id, shown.first, backend, seen, guarded=guarded)[0]
    return shown._replace(calls=calls, first=first), parts


def _bodies(shown: _Shown, runs: Runs | None, parts: Parts, contents: ScriptContents) -> tuple[str, dict[str, Any]]:
    """Return the body of the function that makes the calls, and the values of the template that judges them."""
    write = partial(
        body_of,
        dialect=parts.dialect,
        contents=contents,
        has_lse=shown.backend.contract.lse is not None,
        left_out=parts.left_out,
    )
    calls, first, seen = shown.calls, shown.first, shown.seen
    body, judging = write(calls, run="" if first is None else "second"), {}
    if runs is not None and first is not None and seen is not None:
        judging = runs.values(shown.backend, seen, contents) | {"first_body": write(first, run="first")}
    elif calls.answer is not None:
        judging = judging_of(calls, shown.backend, seen, contents, tolerated=parts.tolerated)
    return body, judging


def _rest(
    shown: _Shown,
    parts: Parts,
    contents: ScriptContents,
    recurrence: Recurrence | None,
    body: str,
    judging: Mapping[str, Any],
) -> str:
    """Return a script behind its imports."""
    calls, first, seen = shown.calls, shown.first, shown.seen
    bodies = body + judging.get("first_body", "")
    return _template("rest.py.j2").render(
        body=body,
        # Which of its functions a script uses.
        used=f"{bodies}{judging}",
        packed=contents.packed,
        allocate=parts.allocate,
        main=parts.main,
        wrappers=parts.wrappers,
        carried=parts.carried,
        files=parts.files,
        device=parts.device,
        guarded=shown.guarded,
        hollow=shown.hollow,
        guard=calls.guard.value,
        # A process that dies can't check its results.
        checked=not shown.deadly and first is None,
        # A call may raise an exception after that.
        damages=seen is not None and seen.kind in DAMAGES,
        related=first is not None,
        judged=calls.answer is not None and first is None,
        cached=bool(calls.written),
        elementwise=inlined((elements,), ("over_bound",), {}) if calls.expected else "",
        selection=inlined((lists,), ("mistake_of_list",), {}) if calls.lists else "",
        child=parts.more["native"],
        poison=_poison(calls, parts.left_out),
        read_only=_read_only(calls, shown.backend, parts.left_out),
        partial=_partly_written(calls, shown.backend, parts.left_out),
        repeats=1 if recurrence is None else max(2, recurrence.runs_to_show),
        repeat_seconds=MOST_SECONDS,
        # The number of buffers that each round of calls allocates.
        buffers=bodies.count(" = memory("),
        **judging,
        **parts.more,
    )


def _answered(judging: Mapping[str, object], calls: CallCase) -> str:
    """Name the functions that say whether the results are right, if any."""
    if "first_body" in judging:
        return ", those of two runs, and compares the rows of both"
    if judging:
        return ", attention() computes the right answer in fp64, and compare() reports the errors"
    names = {"compare_cache": calls.written, "compare_tensor": calls.expected, "compare_lists": calls.lists}
    used = [name for name, some in names.items() if some]
    return f", {' and '.join(used)} reports the errors" if used else ""


def _repeated(recurrence: Recurrence | None) -> list[str]:
    """Return lines about a flaky failure."""
    if recurrence is None:
        return []
    beside = ""
    if recurrence.way is Rerun.LOAD:
        beside = f" Start {recurrence.load} of this script at the same time."
    return [recurrence.words, f"The calls are made until it fails, for {MOST_SECONDS} s at most.{beside}"]


def _poison(calls: CallCase, left_out: frozenset[str]) -> dict[str, bytes]:
    """Return the bytes of a poisoned element, for each dtype of the buffers that calls reach."""
    reached = reached_by(calls.calls) - left_out
    dtypes = dict.fromkeys(buffer.dtype for buffer in calls.buffers if buffer.name in reached)
    return {dtype.value: poison(dtype.torch_dtype).content(dtype.itemsize) for dtype in dtypes}


def _partly_written(
    calls: CallCase, backend: Backend, left_out: frozenset[str]
) -> dict[str, list[tuple[tuple[int, ...], tuple[int, ...], int]]]:
    """Return the (shape, stride, offset) of all outputs in each buffer that these don't fill: a view leaves gaps."""
    outputs: dict[str, list[View]] = {}
    others = {write.name for call in calls.calls for write in call.writes} | left_out
    for call in calls.calls:
        writes = frozenset[str]() if call.op == REPLAY else backend.ops[call.op].writes
        chosen = {name: value for name, value in call.arguments.items() if name in writes}
        for _, view in named_views(chosen):
            outputs.setdefault(view.buffer, []).append(view)
    return {
        buffer.name: [(tuple(view.shape), tuple(view.stride), view.offset) for view in dict.fromkeys(views)]
        for buffer in calls.buffers
        if buffer.name not in others
        and (views := outputs.get(buffer.name))
        and all(view.dtype is None for view in views)
        and max(prod(view.shape) for view in views) < buffer.size
    }


def _read_only(calls: CallCase, backend: Backend, left_out: frozenset[str]) -> list[str]:
    """Return the buffers that must not be written during or between the calls."""
    written = {write.name for call in calls.calls for write in call.writes}
    if calls.answer is not None:
        written |= {write.name for write in calls.answer.writes}
    for call in calls.calls:
        writes = frozenset[str]() if call.op == REPLAY else backend.ops[call.op].writes
        outputs = {name: value for name, value in call.arguments.items() if name in writes}
        written |= {view.buffer for _, view in named_views(outputs)}
    untouched = reached_by(calls.calls) - written - left_out
    return [buffer.name for buffer in calls.buffers if buffer.name in untouched]


@cache
def _template(name: str) -> jinja2.Template:
    environment = environment_of("attnfuzz.harness.export", autoescape=False, keep_trailing_newline=True)
    environment.filters.update(python=quoted, source=source, in_docstring=in_docstring)
    return environment.get_template(name)
