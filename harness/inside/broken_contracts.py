"""Calls that were seen to break their contract: told beside whatever else went wrong in the step, and by themselves."""

from collections.abc import Sequence

from msgspec.structs import replace

from attnfuzz.harness.verdict.failures import Observation


def with_broken(found: Sequence[Observation], broken: Sequence[Observation]) -> list[Observation]:
    """What a step's checks found, each with the first broken contract in its text; then the broken contracts.

    What came of them is worse than that they were broken, and stands before them. A breach that several calls of the
    step have in common is told once.
    """
    if not broken:
        return list(found)
    first = broken[0]
    told = [replace(each, message=f"{each.message}\nbefore that, {first.message}") for each in found]
    once: dict[tuple[str, str], Observation] = {}
    for each in broken:
        once.setdefault((each.kernel, each.place), each)
    return [*told, *once.values()]
