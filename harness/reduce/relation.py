"""Edits that do without a metamorphic relation; `plain` puts it back to none."""

from collections.abc import Iterator

from attnfuzz.reference.case import Case
from attnfuzz.reference.related import NotRelated, related


def run_only_the_other(case: Case) -> Iterator[Case]:
    """The related case by itself: its failure may need no first run."""
    if case.relation is not None:
        try:
            yield related(case).case
        except NotRelated:
            return


EDITS = (run_only_the_other,)
