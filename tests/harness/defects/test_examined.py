"""The row of `attnfuzz doctor` on planted defects."""

import pytest

from attnfuzz.harness.defects.examined import planted_defects
from attnfuzz.harness.doctor.measurement import Mark
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference.any_case import AnyCase


class BlindRunner:
    """A judge that sees no failure."""

    def verdict(self, case: AnyCase) -> Verdict:
        """Return that the case passes."""
        return Verdict()

    def renew(self) -> None:
        """Do nothing: there is no worker."""


@pytest.mark.parametrize(
    ("seconds", "outcome", "words"),
    [
        (60.0, Mark.FAILS, "; not found: decode_planned_before_padding, "),
        (0.0, Mark.NOT_MEASURED, "no time left: decode_planned_before_padding (after 1), "),
    ],
)
def test_defects_are_missed_only_by_complete_searches(seconds: float, outcome: Mark, words: str) -> None:
    (row,) = planted_defects(BlindRunner(), examples=2, seconds=seconds)
    assert row.outcome is outcome
    assert words in row.result
