"""Moving a failing case to where another case fails, since its cause may be visible there as well."""

from collections.abc import Iterator

from msgspec.structs import replace

from attnfuzz.harness.reduce.transfers import captured, in_mode, with_few_keys
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Launch, Mode
from attnfuzz.reference.edits.cuts import map_requests
from attnfuzz.reference.related import related
from attnfuzz.reference.relation import Relation


def moved(case: Case, to: Case, fingerprint: Fingerprint) -> Iterator[Case]:
    """Yield `case` where `to` fails with this fingerprint: in its backend and mode, and replayed if `to` is.

    Variants follow with rows in which the failure is visible, and with the contents and memory of `to`.
    """
    there = replace(case, backend=to.backend)
    if fingerprint.mode in set(Mode) and Mode(fingerprint.mode) not in {step.mode for step in there.steps}:
        there = in_mode(there, Mode(fingerprint.mode))
    yield there
    if _replays(to) and not _replays(there) and (replayed := captured(there)) is not None:
        yield replayed
    yield from _visible(there, fingerprint.place)
    yield replace(
        there,
        guard=to.guard,
        values=to.values,
        outputs=to.outputs,
        workspace=to.workspace,
        pages=replace(to.pages, hole=there.pages.hole),
        views=to.views,
        seed=to.seed,
    )


def _visible(case: Case, place: str) -> Iterator[Case]:
    if place == "padded rows":
        yield related(replace(case, relation=Relation.PADDING_ENLARGED)).case
    elif place == "empty rows":
        yield map_requests(case, lambda request: replace(request, kv_len=0))
        yield with_few_keys(case)


def _replays(case: Case) -> bool:
    return any(step.launch is Launch.REPLAY for step in case.steps)
