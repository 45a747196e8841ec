"""What a seed draws does not depend on which modules are loaded, nor from where."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys

from hypothesis import strategies

from attnfuzz.harness.search.examples import run_examples

if sys.argv[1:]:
    import numbers_of_a_user
run_examples(strategies.integers(0, 10**9), lambda number: print(number), examples=300, seed_of=7)
"""
NUMBERS = range(600_000_000, 600_000_050)


@pytest.mark.slow
def test_a_seed_draws_the_same_beside_modules_full_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "numbers_of_a_user.py").write_text("\n".join(f"N{number} = {number}" for number in NUMBERS))
    (tmp_path / "script.py").write_text(SCRIPT)
    drawn = [
        subprocess.run(
            [sys.executable, "script.py", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for arguments in ([], ["with them"])
    ]
    assert drawn[0] == drawn[1]
    assert len(drawn[0].splitlines()) >= 300
    assert not (tmp_path / ".hypothesis").exists()
