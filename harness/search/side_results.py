"""Results of judged cases besides failures: gaps, rejections and novelty."""

from collections import Counter
from collections.abc import Callable

from attnfuzz.harness.search.messages import AnyMessage, Gap
from attnfuzz.harness.search.novelty import Novelty
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase


class SideResults:
    """Sends each new gap and interesting case of a slice as a message, and counts rejections.

    Attributes:
        unsupported: The number of rejected cases, by reason.

    """

    def __init__(self, tell: Callable[[AnyMessage], None], novelty: Novelty | None) -> None:
        self._tell, self._novelty = tell, novelty
        self._gaps: set[Fingerprint] = set()
        self.unsupported: Counter[str] = Counter()

    def note(self, case: AnyCase, verdict: Verdict) -> None:
        """Send or count the results of a case."""
        if verdict.unsupported is not None:
            self.unsupported[verdict.unsupported] += 1
        for observation in verdict.observations:
            fingerprint = Fingerprint.of(case.backend, observation)
            if observation.gap and fingerprint not in self._gaps:
                self._gaps.add(fingerprint)
                self._tell(Gap(fingerprint=fingerprint, case=case, observation=observation))
        news = self._novelty.of(case, verdict) if self._novelty is not None else None
        if news is not None:
            self._tell(news)
