"""The changes between two campaigns: two nights, or two versions of a backend."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnfuzz.harness.backends.registry import family
from attnfuzz.harness.campaign.causes import Cause
from attnfuzz.harness.campaign.events import AnyFinding, CampaignStarted
from attnfuzz.harness.campaign.standing import Score, Standing
from attnfuzz.harness.verdict.fingerprint import fine
from attnfuzz.harness.verdict.wording import clock, count
from attnfuzz.strategies.coverage import Pair


@dataclass(frozen=True)
class ChangedValue:
    """A value that changed; empty if it was not there."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class MarginChange:
    """The largest margin of a tier among cases that passed, error over bound; None where the tier did not apply."""

    tier: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """After over before."""
        return self.after / self.before if self.before and self.after is not None else None


@dataclass(frozen=True)
class BackendChange:
    """One backend in both campaigns, or two versions of it, with their scores."""

    name: str
    before: Score
    after: Score

    @property
    def margins(self) -> list[MarginChange]:
        """The margin changes, by tier."""
        old, new = self.before.tally.margins, self.after.tally.margins
        return [MarginChange(tier, old.get(tier), new.get(tier)) for tier in sorted(old.keys() | new.keys())]

    @property
    def gained(self) -> Counter[str]:
        """Numbers of newly reached pairs of features, by their axes, most first."""
        return _by_axes(self.after.pairs - self.before.pairs)

    @property
    def lost(self) -> Counter[str]:
        """Numbers of pairs of features reached only before, by their axes, most first."""
        return _by_axes(self.before.pairs - self.after.pairs)

    @property
    def milliseconds(self) -> tuple[float | None, float | None]:
        """Job time per run, before and after; None if not measured."""
        return _milliseconds(self.before), _milliseconds(self.after)


@dataclass(frozen=True)
class Comparison:
    """Two campaigns, called `before` and `after` by their names.

    `caveats` are sentences about things that can't be compared. Causes are those of failures of `backends`: `appeared`
    and `still` as the later campaign saw them; `fixed` and `unseen` are those without a failure in it, of which it ran
    all `fixed` ones again. `grown` counts the new failures of causes that are still there, by the cause's name;
    `left_out` the findings of other backends. `rates` are runs per second in all.
    """

    before: str
    after: str
    caveats: tuple[str, ...]
    environment: tuple[ChangedValue, ...]
    appeared: tuple[Cause, ...]
    still: tuple[Cause, ...]
    fixed: tuple[Cause, ...]
    unseen: tuple[Cause, ...]
    grown: Mapping[str, int]
    backends: tuple[BackendChange, ...]
    rates: tuple[float, float]
    left_out: int = 0

    @property
    def nothing(self) -> str | None:
        """A sentence for the case that there is no finding to list, else None."""
        if self.appeared or self.fixed or self.unseen or self.still:
            return None
        return "No findings in the backends that both searched." if self.left_out else "No findings in either."


def compare(before: Standing, after: Standing) -> Comparison:
    """Compare two campaigns that have started."""
    old, new = _start(before), _start(after)
    partners = _partners(before.scores, after.scores)
    backends = [
        BackendChange(name if name == partner else f"{partner} → {name}", before.scores[partner], after.scores[name])
        for name, partner in partners.items()
    ]
    names = {partner: name for name, partner in partners.items()}
    own = {name: name for name in partners}
    was, now = _failures(before.causes, names), _failures(after.causes, own)
    before_keys, now_keys = (frozenset().union(*(keys for _, keys in failures)) for failures in (was, now))
    passes = frozenset(_key(finding, own) for finding in after.fixed if finding.case.backend in own)
    gone = [(cause, keys) for cause, keys in was if not keys & now_keys]
    return Comparison(
        before=old.campaign,
        after=new.campaign,
        caveats=(*_endings(before, after), *_settings(old, new), *_unpaired(before, after, partners)),
        environment=changes(before.environment, after.environment),
        appeared=tuple(cause for cause, keys in now if not keys & before_keys),
        still=tuple(cause for cause, keys in now if keys & before_keys),
        fixed=tuple(cause for cause, keys in gone if keys <= passes),
        unseen=tuple(cause for cause, keys in gone if not keys <= passes),
        grown={cause.name: len(keys - before_keys) for cause, keys in now if keys & before_keys and keys - before_keys},
        backends=tuple(backends),
        rates=(before.rate(before.runs), after.rate(after.runs)),
        left_out=sum(
            finding.case.backend not in compared
            for standing, compared in ((before, names), (after, partners))
            for finding in standing.findings
        ),
    )


def _start(standing: Standing) -> CampaignStarted:
    assert standing.started is not None
    return standing.started


def _partners(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """Map each backend of `after` to its partner: itself, or else the only other version of it."""
    old, new = list(before), list(after)
    partners = {name: name for name in new if name in old}
    for name in new:
        others = [other for other in old if other not in new and family(other) == family(name)]
        rivals = [rival for rival in new if rival not in old and family(rival) == family(name)]
        if name not in partners and len(others) == len(rivals) == 1:
            partners[name] = others[0]
    return {name: partners[name] for name in new if name in partners}


def _failures(causes: Iterable[Cause], names: Mapping[str, str]) -> list[tuple[Cause, frozenset[str]]]:
    """Return the causes of findings of backends in `names`, reduced to those, with the keys of their findings."""
    own = ([finding for finding in cause.findings if finding.case.backend in names] for cause in causes)
    return [(Cause(tuple(found)), frozenset(_key(each, names) for each in found)) for found in own if found]


def _key(finding: AnyFinding, names: Mapping[str, str]) -> str:
    """Return the identity of a finding in both campaigns, whatever the version of its backend."""
    return fine(finding.case.having(backend=names[finding.case.backend]), finding.observation)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[ChangedValue, ...]:
    """Return the values that differ between two environments, in their order."""
    names = dict.fromkeys([*before, *after])
    changes = (ChangedValue(name, before.get(name, ""), after.get(name, "")) for name in names)
    return tuple(change for change in changes if change.before != change.after)


def _settings(old: CampaignStarted, new: CampaignStarted) -> list[str]:
    spoiled = {
        "attnfuzz": "it may draw and judge in other ways",
        "contract": "findings and margins are not comparable",
        "guard": "what was found by running past an edge is not comparable",
        "alpha": "margins are not comparable, since bounds are wider for a smaller one",
        "budget": "the longer one reaches and finds more",
        "jobs": "runs per second are not comparable",
        "end": "the one that goes on reaches and finds more",
    }
    before, after = _words(old), _words(new)
    return [
        f"{name} was {before[name]} and is {after[name]}: {effect}"
        for name, effect in spoiled.items()
        if before[name] != after[name]
    ]


def _words(started: CampaignStarted) -> dict[str, str]:
    examples = started.examples
    return {
        "attnfuzz": started.attnfuzz,
        "contract": started.contract,
        "guard": started.guard or "either edge",
        "alpha": f"{started.alpha:g}",
        "budget": clock(started.seconds or 0) if examples is None else f"{examples:,} cases each",
        "jobs": str(started.jobs),
        "end": "at the first finding" if started.until_finding else "with the budget",
    }


def _endings(before: Standing, after: Standing) -> list[str]:
    return [
        f"{_start(standing).campaign} did not come to its end: missing findings may exist"
        for standing in (before, after)
        if standing.finished is None or standing.finished.interrupted or standing.failure is not None
    ]


def _unpaired(before: Standing, after: Standing, partners: Mapping[str, str]) -> list[str]:
    caveats = []
    for standing, partnered in ((before, set(partners.values())), (after, set(partners))):
        if names := standing.scores.keys() - partnered:
            number = sum(finding.case.backend in names for finding in standing.findings)
            found = f", with {count(number, 'finding')}" if number else ""
            searched = f"only {_start(standing).campaign} searched {', '.join(sorted(names))}"
            caveats.append(f"{searched}: left out{found}")
    return caveats


def _by_axes(pairs: Iterable[Pair]) -> Counter[str]:
    # By the names in the log, not today's axes: an old log may have others.
    counted = Counter(" x ".join(feature.partition("=")[0] for feature in pair) for pair in pairs)
    return Counter(dict(sorted(counted.items(), key=lambda item: (-item[1], item[0]))))


def _milliseconds(score: Score) -> float | None:
    seconds = sum(score.tally.phases.values())
    return 1000 * seconds / score.tally.cases if seconds and score.tally.cases else None
