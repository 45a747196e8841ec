"""Products that cuBLASLt splits over the keys, whose parts are rounded to 16 bits before they are added up."""

from pathlib import Path

import pytest

from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.reference import case_file

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("recorded", sorted(Path(__file__).with_name("split_k").glob("*.json")), ids=lambda p: p.stem)
def test_equal_weights_over_parts_of_the_keys_are_judged_as_such(recorded: Path) -> None:
    case = case_file.load(recorded)
    with Runner([case.backend]) as runner:
        verdict = runner.verdict(case)
    assert not verdict.failures, render_failure(case, verdict)
