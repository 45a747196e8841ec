"""Whether the events of a log go together: what types can't say of them one by one."""

from attnfuzz.harness.campaign.events import AnyEvent, CampaignStarted, SliceFinished, SliceStarted
from attnfuzz.harness.search.messages import SliceKind


class Inconsistent(ValueError):
    """An event that no campaign tells at this place of its log; the message says why."""


class Consistency:
    """Follows the events of a log, in their order."""

    def __init__(self) -> None:
        self._at = 0.0
        self._backends: frozenset[str] | None = None

    def check(self, event: AnyEvent) -> None:
        """Raise Inconsistent if `event` can't follow those before it."""
        if isinstance(event, CampaignStarted):
            if self._backends is not None:
                raise Inconsistent("the campaign starts a second time")
            if event.examples is None and event.seconds is None:
                raise Inconsistent("the campaign has no budget")
            self._backends = frozenset(event.backends)
        if isinstance(event, SliceStarted | SliceFinished) and (event.index is None) is (event.kind is SliceKind.DRAWN):
            raise Inconsistent("slices that draw have an index, and no others")
        if event.at < self._at:
            raise Inconsistent(f"it happened at {event.at:g} s, before the event in front of it")
        self._at = event.at
        named = getattr(event, "backend", None), *_backends(event)
        unknown = next((name for name in named if name is not None and name not in (self._backends or ())), None)
        if unknown is not None:
            raise Inconsistent(f"the campaign does not test {unknown[:80]!r}")


def _backends(event: AnyEvent) -> tuple[str | None, ...]:
    return tuple(getattr(getattr(event, field, None), "backend", None) for field in ("fingerprint", "case"))
