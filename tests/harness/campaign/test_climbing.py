"""A climbing slice follows the judge's margins upwards."""

from fake_search import FakeJudge, fake_cases, kv_lens

from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Slice, Tally
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference.case import Case


class Slope(FakeJudge):
    """The closer the first two lengths come to 73 and 146, the larger the margin; another margin is always 0."""

    def verdict(self, case: Case) -> Verdict:
        super().verdict(case)
        first, second = (*kv_lens(case), 0)[:2]
        return Verdict(margins={"T1": 1 / (1 + abs(first - 73) + abs(second - 146)), "T3": 0.0})


def largest_margin(*, climb: bool) -> float:
    told: list[AnyMessage] = []
    task = Slice(backend="fake", index=0, seed=1, examples=250, climb=climb)
    done = Hunt(task, Slope(lambda _: ()), told.append).run(fake_cases())
    assert done.searched == 250
    return max(message.margins["T1"] for message in told if isinstance(message, Tally))


def test_climbing_reaches_what_drawing_does_not() -> None:
    assert largest_margin(climb=False) < 0.5
    assert largest_margin(climb=True) == 1.0
