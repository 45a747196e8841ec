"""Moving a failure that matches a ledger entry to a case that does not match it.

An entry names features that a failure needs. A drawn case may have them by chance.
"""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from attnfuzz.harness.reduce.ablation import ablations
from attnfuzz.harness.reduce.cuts import tidy
from attnfuzz.harness.reduce.possible import possible
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.reference.case import Case


def unaccepted(pinned: Pinned[Case], allowed: Callable[[Case], bool], accepts: Callable[[Case], bool]) -> Case | None:
    """Return a variant of the pinned case that fails alike and is not accepted, or None.

    It lacks one feature, or the steps of one mode.
    """
    tried = (each for each in _less(pinned.first, allowed) if not accepts(each))
    return next((each for each in tried if pinned.observation(each) is not None), None)


def _less(case: Case, allowed: Callable[[Case], bool]) -> Iterator[Case]:
    for ablation in ablations(case, allowed=allowed):
        yield from ablation.variants
    for mode in dict.fromkeys(step.mode for step in case.steps):
        kept = tidy(replace(case, steps=tuple(step for step in case.steps if step.mode is not mode)))
        if possible(kept) and allowed(kept):
            yield kept
