"""Moving a failing case to where another case fails, since its cause may be visible there as well."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from attnfuzz.harness.reduce.transfers import captured, exchanged, in_mode, with_few_keys
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Launch, Mode, Outputs, TableTail, Unused
from attnfuzz.reference.edits.cuts import map_requests
from attnfuzz.reference.related import related
from attnfuzz.reference.relation import Relation


def moved(case: Case, to: Case, fingerprint: Fingerprint) -> Iterator[Case]:
    """Yield `case` where `to` fails with this fingerprint: in its backend and mode, and replayed if `to` is.

    Steps of several modes are also moved one mode at a time, because they may have to differ. Then variants follow with
    rows in which the failure is visible at its place; with the circumstances of `to`, which decide whether a stray
    access hits a guard or a NaN; and last with its sizes and dtypes, for backends that have none in common.
    """
    there = replace(case, backend=to.backend)
    modes = dict.fromkeys(step.mode for step in there.steps)
    one_by_one: list[Case] = []
    if fingerprint.mode in set(Mode):
        mode = Mode(fingerprint.mode)
        one_by_one = [exchanged(there, each, mode) for each in modes if each is not mode and len(modes) > 1]
        there = there if mode in modes else in_mode(there, mode)
    yield there
    yield from one_by_one
    if _replays(to) and not _replays(there) and (replayed := captured(there)) is not None:
        yield replayed
    yield from _visible(there, to, fingerprint.place)
    tail = there.pages.tail if TableTail.ZEROS in (there.pages.tail, to.pages.tail) else to.pages.tail
    pages = replace(there.pages, spare=to.pages.spare, tail=tail)
    yield replace(there, guard=to.guard, values=to.values, outputs=to.outputs, pages=pages, seed=to.seed)
    own = case.geometry
    if case.backend != to.backend:
        features = {"window_left": own.window_left, "sinks": own.sinks, "soft_cap": own.soft_cap}
        yield replace(there, geometry=replace(to.geometry, **features))


def on_memory_of(case: Case, other: Case) -> Case:
    """Return a case with the tables, views, workspace and contents of memory that `other` has.

    A hole is a different matter: offsets above 2^31 are a feature that another mistake needs.
    """
    own = ("views", "workspace", "guard", "values", "outputs", "seed")
    pages = replace(other.pages, hole=case.pages.hole)
    return replace(case, pages=pages, **{name: getattr(other, name) for name in own})


def on_other_memory(case: Case) -> Case:
    """Return the case with NaN instead of numbers in unused memory and outputs, and with numbers instead of NaN."""
    pages = replace(case.pages, behind=_OTHER[case.pages.behind], free=_OTHER[case.pages.free])
    outputs = Outputs.POISONED if case.outputs is Outputs.STALE else Outputs.STALE
    return replace(case, pages=pages, outputs=outputs)


_OTHER: Final = {Unused.NAN: Unused.NUMBERS, Unused.NUMBERS: Unused.NAN}


def on_the_way(case: Case, to: Case) -> Iterator[Case]:
    """Yield `case` with one part after the other as in `to`, except for the last."""
    changed = [name for name in case.__struct_fields__ if getattr(case, name) != getattr(to, name)]
    for name in changed[:-1]:
        case = replace(case, **{name: getattr(to, name)})
        yield case


def _visible(case: Case, to: Case, place: str) -> Iterator[Case]:
    """Yield variants of a case with rows without keys, or rows of padding, if the failure is visible in those.

    If it had none, they have sinks if those of `to` do: without sinks, the LSE of no keys is the same for every part of
    a row.
    """
    if place == "padded rows":
        yield related(replace(case, relation=Relation.PADDING_ENLARGED)).case
    elif place == "empty rows":
        with_sinks = replace(case, geometry=replace(case.geometry, sinks=to.geometry.sinks))
        for each in (case,) if _has_empty_rows(case) else dict.fromkeys((case, with_sinks)):
            yield map_requests(each, lambda request: replace(request, kv_len=0))
            yield with_few_keys(each)


def _has_empty_rows(case: Case) -> bool:
    return any(request.kv_len < request.q_len for step in case.steps for request in step.requests)


def _replays(case: Case) -> bool:
    return any(step.launch is Launch.REPLAY for step in case.steps)
