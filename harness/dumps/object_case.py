"""Runs of wrapper objects as calls on objects: the constructor, the plan and the run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import names, resolve
from attnfuzz.harness.calls.asked import NamesNothing, NotJudgeable, asked, parts_of
from attnfuzz.harness.dumps.contents import BufferShelf, Contents
from attnfuzz.harness.dumps.cut_pool import PageMap, cut_pool
from attnfuzz.harness.dumps.placed_call import origin, page_notes
from attnfuzz.harness.dumps.planned_runs import PLANNED_RUNS
from attnfuzz.harness.dumps.recorded import DumpError, ForeignTensor, OtherValue, Recorded, RecordedCall
from attnfuzz.harness.dumps.understood import layout_of, pictured
from attnfuzz.harness.dumps.wrapper_calls import class_of, last_call
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.interface.library_call import COMPILES
from attnfuzz.kernels.meaning import Breach
from attnfuzz.reference.call_validity import validate_calls
from attnfuzz.reference.calls import Argument, Call, CallCase, View, literal_number
from attnfuzz.reference.validity import ImpossibleCase

_QUERIES: Final = {"": ("q", "q_nope", "query"), "_p": ("q_p",), "_d": ("q_d",)}
"""The names of the queries of a result, by the suffix of its name."""

_WORKSPACES: Final = frozenset({"float_workspace_buffer", "int_workspace_buffer"})


def is_run_of(call: RecordedCall, backend: Backend) -> bool:
    """Return whether a recorded call is the run of an object that a backend can make."""
    return call.self_id is not None and call.function.endswith(".run") and call.function in backend.ops


def backends_with(call: RecordedCall) -> list[str]:
    """List the backends that have the method of a recorded call."""
    return [name for name in names() if call.function in resolve(name).ops]


def make_object_case(
    calls: Sequence[RecordedCall],
    runs: Sequence[RecordedCall],
    backend: Backend,
    *,
    contents: Contents = Contents.VALUES,
    seed: int = 0,
) -> tuple[CallCase, tuple[Breach, ...]]:
    """Make a case of `runs` of objects, with their constructors and plans; `calls` are the dump's.

    Returns it with the preconditions that the last run breaks. It has the right answer to this run, if its plan names
    the keys, and all of its results are judged at once. Of a pool, it keeps the pages that the plan's lists refer to,
    if their meaning is known.

    Raises:
        DumpError: a constructor or a plan was not dumped, or an argument makes no case.

    """
    shelf = BufferShelf(contents, seed, str(runs[-1].folder))
    made = _Lives(calls, backend, shelf)
    for run in runs:
        made.add(run)
    case = CallCase(
        backend=backend.name, buffers=shelf.buffers(), calls=tuple(made.literal), notes=tuple(dict.fromkeys(made.notes))
    )
    try:
        validate_calls(case)
    except ImpossibleCase as error:
        raise DumpError(f"{runs[-1].folder} can't be made a case: {error}; import another call") from error
    parts = parts_of(case, len(case.calls) - 1)
    if parts > 1:
        text = f"Only accesses are judged: attnfuzz triage judges the {parts} parts of its result one by one."
        return replace(case, notes=(*case.notes, text)), made.breaches
    try:
        return asked(case, len(case.calls) - 1, backend.contract), ()
    except NamesNothing as broken:
        # Page ids of the dump, not the new ones.
        return case, made.breaches or (broken.breach,)
    except NotJudgeable:
        return case, made.breaches


class _Lives:
    """The literal calls of the runs added so far, notes on what their recording lost, and breaches of the last one."""

    def __init__(self, calls: Sequence[RecordedCall], backend: Backend, shelf: BufferShelf) -> None:
        self._calls, self._backend, self._shelf = calls, backend, shelf
        self._objects: dict[int, str] = {}
        self._planned: list[RecordedCall] = []
        self.literal: list[Call] = []
        self.notes: list[str] = []
        self.breaches: tuple[Breach, ...] = ()

    def add(self, run: RecordedCall) -> None:
        """Add a run, after its constructor and its plan unless they are there already."""
        begun, plan = (last_call(self._calls, run, name) for name in ("__init__", "plan"))
        assert run.self_id is not None
        name = self._objects.get(run.self_id)
        if name is None:
            name = self._objects[run.self_id] = f"wrapper_{len(self._objects) + 1}"
            self._make(class_of(run), begun, self._arguments(begun), makes=name)
        pool = self._pool(begun, plan, run)
        if not any(plan is each for each in self._planned):
            self._planned.append(plan)
            entry = PLANNED_RUNS.get(run.function)
            implied = {} if entry is None else entry.implied(plan.arguments, run.arguments)
            self._make(plan.function, plan, self._arguments(plan, pool) | implied, on=name)
        arguments = self._arguments(run, pool)
        self._make(run.function, run, arguments | self._outputs(plan, run, arguments), on=name)

    def _make(
        self, op: str, call: RecordedCall, arguments: dict[str, Argument], *, on: str = "", makes: str = ""
    ) -> None:
        if op not in self._backend.ops:
            raise DumpError(f"{call.folder}: {self._backend.name} has no {op}; name another backend with --backend")
        self.literal.append(Call(op=op, arguments=arguments, on=on, makes=makes))
        self.notes += [origin(call), *call.lost]

    @property
    def _prefix(self) -> str:
        return f"call_{len(self.literal)}_"

    def _arguments(self, call: RecordedCall, pool: Mapping[str, Argument] | None = None) -> dict[str, Argument]:
        """Place the arguments of a call, those in `pool` as they are there."""
        found: dict[str, Argument] = {}
        for name, value in call.arguments.items():
            if pool is not None and name in pool:
                found[name] = pool[name]
            elif name in COMPILES and value is not None:
                raise DumpError(
                    f"{call.folder}: {call.function} compiles source code by {name}, which a case can't hold"
                )
            elif isinstance(value, OtherValue):
                self.notes.append(f"{name} was {value.text} ({value.type_name}), which a case can't hold.")
            else:
                found[name] = self._placed(call, name, value)
        return found

    def _placed(self, call: RecordedCall, name: str, value: Recorded) -> Argument:
        if isinstance(value, tuple):
            return [self._put(f"{name}_{index}", each) for index, each in enumerate(value)]
        if isinstance(value, ForeignTensor):
            if name not in _WORKSPACES:
                return self._put(name, value)
            nbytes = math.prod(value.shape) * value.dtype.itemsize
            self.notes.append(f"{name} has {nbytes:,} bytes of zeros: what earlier calls left there is not kept.")
            return self._shelf.keep(self._prefix + name, torch.zeros(nbytes, dtype=torch.uint8))
        if isinstance(value, torch.dtype):
            return str(value)
        if isinstance(value, float):
            return literal_number(value)
        assert not isinstance(value, OtherValue)
        return value

    def _put(self, name: str, value: ForeignTensor) -> View:
        return self._shelf.put(self._prefix + name, value.shape, value.dtype, value.read, layout_of(value))

    def _pool(self, begun: RecordedCall, plan: RecordedCall, run: RecordedCall) -> dict[str, Argument]:
        """Place the pool and the plan's page ids, cut to the pages that its lists refer to; {} if they are unknown."""
        entry = PLANNED_RUNS.get(run.function)
        if entry is None or not isinstance(plan.arguments.get(entry.indices), ForeignTensor):
            return {}
        caches = {name: run.arguments[name] for name in entry.caches if run.arguments.get(name) is not None}
        tensors = [each for cache in caches.values() for each in (cache if isinstance(cache, tuple) else (cache,))]
        if not tensors or not all(isinstance(each, ForeignTensor) for each in tensors):
            return {}
        recorded = {"kv_layout": begun.arguments.get("kv_layout", "NHD"), **pictured(plan), **pictured(run)}
        given: dict[str, Any] = entry.canonical(recorded)
        try:
            spans = entry.spans(given)
            # A run may allocate its output.
            parameters = entry.parameters({"out": _whole(given["query"])} | _without_nones(given))
        except (ValueError, KeyError, AttributeError) as error:
            raise DumpError(f"{run.folder}: its plan and its pool don't fit each other: {error}") from error
        self.breaches = tuple(entry.breaches(given))
        parts, table = [each for each in parameters if each.axes[:1] == ("pages",)], given[entry.indices]
        sources = [each for each in tensors if isinstance(each, ForeignTensor)]
        total, size = sources[0].shape[0], sources[0].shape[parts[0].axes.index("slots")]
        pages = PageMap.of(total, spans, table)
        cut = cut_pool(self._shelf, self._prefix, parts, sources, pages, pages.covered(spans, size))
        nbytes = sum(math.prod(each.shape) * each.dtype.itemsize for each in sources)
        self.notes += [*page_notes(" and ".join(caches), pages, size, nbytes), *cut.notes]
        ids = ForeignTensor.of(pages.renumbered(table))
        left = iter(cut.parts)
        placed: dict[str, Argument] = {
            name: [next(left) for _ in cache] if isinstance(cache, tuple) else next(left)
            for name, cache in caches.items()
        }
        return {**placed, entry.indices: self._put(entry.indices, ids)}

    def _outputs(self, plan: RecordedCall, run: RecordedCall, arguments: Mapping[str, Argument]) -> dict[str, Argument]:
        """Allocate the results that a run would allocate itself, so that they are guarded and judged."""
        library = self._backend.ops[run.function].library
        results = () if library is None else library.results
        wanted = plan.arguments.get("o_data_type")
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for suffix, queries in _QUERIES.items():
            query = _whole(next((run.arguments[name] for name in queries if run.arguments.get(name) is not None), None))
            if not isinstance(query, ForeignTensor):
                continue
            dtype = wanted if isinstance(wanted, torch.dtype) else query.dtype
            shapes[f"out{suffix}"] = (*query.shape[:-1], _value_dim(plan, run, query)), dtype
            if run.arguments.get("return_lse") or f"lse{suffix}" in results:
                shapes[f"lse{suffix}"] = query.shape[:-1], torch.float32
        return {
            name: self._shelf.output(self._prefix + name, shape, kind)
            for name, (shape, kind) in shapes.items()
            if not isinstance(arguments.get(name), View)
        }


def _whole(query: Any) -> Any:
    """Return a query, or the first of its parts, which is as wide as an output."""
    return query[0] if isinstance(query, list | tuple) and query else query


def _without_nones(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _value_dim(plan: RecordedCall, run: RecordedCall, query: ForeignTensor) -> int:
    for name in ("head_dim_vo", "head_dim_ckv"):
        dim = plan.arguments.get(name)
        if isinstance(dim, int):
            return dim
    for name in ("paged_kv_cache", "v"):
        value = run.arguments.get(name)
        last = value[-1] if isinstance(value, tuple) else value
        if isinstance(last, ForeignTensor):
            return last.shape[-1]
    return query.shape[-1]
