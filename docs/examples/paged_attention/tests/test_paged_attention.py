"""Two ways to fuzz a kernel in a test suite. One is enough."""

import pytest
from hypothesis import given, settings

from attnfuzz import AttnFuzz, cases, check

pytestmark = pytest.mark.fuzz


def test_fuzz(attn_fuzz: AttnFuzz) -> None:
    """As a campaign with a job for each worker of pytest-xdist: the budget is an option of the command line."""
    attn_fuzz.run()


@settings(max_examples=20)
@given(cases("paged_attention"))
def test_every_batch(case) -> None:
    """As a test of Hypothesis: the budget is a setting or a profile."""
    check(case)
