"""Edits that drop calls, or the answer."""

from collections.abc import Iterator

from msgspec.structs import replace

from attnfuzz.harness.calls.object_calls import consistent
from attnfuzz.harness.reduce.call_objects import with_calls
from attnfuzz.harness.reduce.cut import Cuts, cut
from attnfuzz.harness.reduce.drop import Drop, keys_of_answer
from attnfuzz.harness.reduce.meaning import Meaning
from attnfuzz.harness.reduce.placed_views import tidy, views_of
from attnfuzz.harness.reduce.units import Uncuttable
from attnfuzz.kernels.meaning import Role
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.edits.cuts import without_blocks


def drop_answer(case: CallCase) -> Iterator[CallCase]:
    """Drop the answer, which a fault does not need."""
    if case.answer is not None:
        yield tidy(replace(case, answer=None))


def drop_calls(case: CallCase) -> Iterator[CallCase]:
    """Yield fewer calls: any without an answer, else those that the answer doesn't need."""
    if case.answer is None:
        for kept in without_blocks(tuple(range(len(case.calls)))):
            if kept and consistent(case.calls, set(kept)):
                yield tidy(with_calls(case, set(kept)))
        return
    meaning = Meaning(case)
    for index in range(len(case.calls)):
        gone = _with_users(meaning, index)
        if gone is None or len(gone) == len(case.calls):
            continue
        # The answer now belongs to the remaining calls: drop keys that only the others saw.
        places = ((call, request) for call in gone for request in range(meaning.batch))
        keys = {place: range(length) for place in places if (length := meaning.kv_len(*place))}
        try:
            rows = keys_of_answer(meaning, Drop(keys=keys))
            cuts: Cuts = {("request", of, name): {0: drop} for of, drop in rows.items() for name in ("key", "value")}
            yield tidy(cut(with_calls(case, set(range(len(case.calls))) - gone), cuts))
        except Uncuttable:
            continue


def _with_users(meaning: Meaning, index: int) -> set[int] | None:
    """Return a call and all users of its results, to be dropped together, or None if the answer needs them."""
    answer = meaning.case.answer
    assert answer is not None
    results = {site.view.buffer for site in meaning.of_role(Role.OUT, Role.LSE) if site.call == index}
    answered = {view.buffer for view in (answer.out, answer.lse) if view is not None}
    if not results or results & answered:
        return None
    views = [(int(place[1]), view) for place, view in views_of(meaning.case) if place[0] == "call"]
    users = {call for call, view in views if view.buffer in results}
    # The effect of a call of unknown meaning on the answer is unknown.
    if any(call in users & meaning.strangers and view.buffer in answered for call, view in views):
        return None
    return users


EDITS = (drop_answer, drop_calls)
