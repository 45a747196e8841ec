"""Edits that remove a metamorphic relation; `plain` resets it to none."""

from collections.abc import Iterator

from attnfuzz.reference.case import Case
from attnfuzz.reference.related import NotRelated, related


def run_only_the_other(case: Case) -> Iterator[Case]:
    """Yield the related case by itself, since its failure may not need the first run."""
    if case.relation is not None:
        try:
            yield related(case).case
        except NotRelated:
            return
