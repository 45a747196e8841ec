"""Making a case from a plain one of a backend and the fields that a user gives."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast, get_args, get_type_hints

import msgspec

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.cli.terminal import BadInput
from attnfuzz.harness.family import family_with
from attnfuzz.harness.sandbox.check import why_not
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case, Mode, Request, Step


def new_case(
    name: str, *, mode: str | None, queries: Sequence[int], keys: Sequence[int], fields: Mapping[str, str]
) -> AnyCase:
    """Return the first plain case of the named backend that it can run with these fields.

    `mode`, and query and KV lengths of the requests, make its only step. `fields` are values by the names of fields, or
    by their paths, such as "pages.spare". Raises BadInput with the reason if there is no such case.
    """
    backend = resolve(name)
    family = family_with(backend.capability)
    plain = [case for case in family.plain_cases(backend.capability, name) if mode in (None, *case.modes)]
    if not plain:
        modes = dict.fromkeys(each for case in family.plain_cases(backend.capability, name) for each in case.modes)
        raise BadInput(f"{name} has no plain case{f' in {mode}' if mode else ''}: its modes are {', '.join(modes)}.")
    reasons: list[str] = []
    for case in plain:
        try:
            return _runnable(backend, _with_fields(_with_lengths(case, queries, keys), fields))
        except case_file.CaseFileError as error:
            reasons.append(str(error))
    raise BadInput(reasons[0])


def _runnable(backend: Backend, case: AnyCase) -> AnyCase:
    """Return the case if the backend supports it. Raises CaseFileError otherwise."""
    lacking = why_not(backend, case)
    if lacking is not None:
        raise case_file.CaseFileError(f"{case.backend} does not support {lacking}: change that field.")
    return case


def _with_lengths(case: AnyCase, queries: Sequence[int], keys: Sequence[int]) -> AnyCase:
    """Return a case of one step with these lengths: one number holds for each request. Raises BadInput."""
    if not queries and not keys:
        return case
    if not isinstance(case, Case):
        raise BadInput("--q and --kv are lengths of attention: give this backend's steps with --set steps=JSON.")
    step = case.steps[0]
    queries = queries or [max(1, step.tokens_per_request)]
    keys = keys or [max(*queries, *(each.kv_len for each in step.requests))]
    several = max(len(queries), len(keys))
    if {len(queries), len(keys)} - {1, several}:
        raise BadInput(f"--q has {len(queries)} lengths and --kv {len(keys)}: give as many, or one for all requests.")
    pairs = zip(_for_each(queries, several), _for_each(keys, several), strict=True)
    return case.having(steps=(_step(step.mode, [Request(slot, *pair) for slot, pair in enumerate(pairs)]),))


def _for_each(lengths: Sequence[int], several: int) -> Sequence[int]:
    return lengths if len(lengths) == several else list(lengths) * several


def _step(mode: Mode, requests: Sequence[Request]) -> Step:
    longest = max(each.q_len for each in requests)
    return Step(
        mode=mode,
        requests=tuple(requests),
        padded_tokens=sum(each.q_len for each in requests),
        tokens_per_request=longest if mode.speculative else 0,
    )


def _with_fields(case: AnyCase, fields: Mapping[str, str]) -> AnyCase:
    """Return a case with these values, checked like a file. Raises BadInput for a name, CaseFileError for a value."""
    plain = json.loads(case_file.encode(case))
    for name, value in fields.items():
        *parts, field = _path(name, cast("type[msgspec.Struct]", type(case))).split(".")
        inner = plain
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[field] = _value(value)
    return case_file.decode(json.dumps(plain).encode())


def _value(text: str) -> Any:
    """Return a value that is given as JSON, or a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _path(name: str, kind: type[msgspec.Struct]) -> str:
    """Return the path of a field by its name or path. Raises BadInput."""
    paths = list(_paths(kind))
    found = [path for path in paths if path == name] or [path for path in paths if path.rpartition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise BadInput(f"several fields are called {name}: give one of {', '.join(found)}.")
    close = difflib.get_close_matches(name, [*paths, *(path.rpartition(".")[2] for path in paths)], n=3)
    hint = f"did you mean {' or '.join(dict.fromkeys(close))}?" if close else "the reference of cases lists them."
    raise BadInput(f"a case has no field {name!r}: {hint}")


def _paths(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the paths of the fields of a struct, and of the structs in it."""
    for name, hint in get_type_hints(kind).items():
        if name not in kind.__struct_fields__:
            continue
        yield name
        for part in _structs(hint):
            yield from (f"{name}.{inner}" for inner in _paths(part))


def _structs(hint: Any) -> Iterable[type[msgspec.Struct]]:
    """Return the struct that is a hint, or one of its alternatives."""
    return [each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
