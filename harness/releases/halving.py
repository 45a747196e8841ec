"""The choice of versions to run, by halving if that is enough."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from packaging.version import Version

from attnfuzz.harness.releases.outcomes import Outcome


def search(
    versions: Sequence[Version], run: Callable[[Version], Outcome], *, every: bool = False
) -> Mapping[Version, Outcome]:
    """Run as few versions as needed. Returns the outcomes of those that were run, in order.

    The oldest and the newest that can be run come first. If one fails and the other passes, the versions between them
    are halved, skipping ones that can't be run: that finds a change, the only one if there is just one. If they agree,
    all are run, since the fault may have come and gone between them. With `every`, all are run anyway.
    """
    known: dict[Version, Outcome] = {}

    def first_judged(candidates: Iterable[Version]) -> Version | None:
        for version in candidates:
            if version not in known:
                known[version] = run(version)
            if known[version].judged:
                return version
        return None

    oldest, newest = (None, None) if every else (first_judged(versions), first_judged(reversed(versions)))
    if oldest is None or newest is None or known[oldest].ending is known[newest].ending:
        for version in versions:
            first_judged([version])
    else:
        low, high = versions.index(oldest), versions.index(newest)
        while left := [place for place in range(low + 1, high) if versions[place] not in known]:
            middle = min(left, key=lambda place: abs(2 * place - low - high))
            if first_judged([versions[middle]]) is None:
                continue
            same_as_oldest = known[versions[middle]].ending is known[oldest].ending
            low, high = (middle, high) if same_as_oldest else (low, middle)
    return {version: known[version] for version in versions if version in known}
