"""Tables of benchmarks are written into the pages of docs/results."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
record = runpy.run_path(str(ROOT / "benchmarks" / "results.py"))["record"]


def test_a_table_replaces_the_section_with_its_title_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nFor readers.\n\n## Speed\nold\n\n## Speed of light\nkept\n")
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/phases.py", "--examples", "5"])
    for number in ("1", "2"):
        record(page, "Speed", ("", "cases/s"), [("one job", number)], "2 cores")
    text = page.read_text()
    assert text.startswith("# Title\n\nFor readers.\n\n## Speed\n`python benchmarks/phases.py --examples 5` on 20")
    assert text.endswith(", 2 cores.\n\n|  | cases/s |\n| --- | --- |\n| one job | 2 |\n\n## Speed of light\nkept\n")


def test_a_table_without_a_section_is_added_at_the_end(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nFor readers.\n")
    record(page, "Speed", ("",), [("a|b",)], "2 cores")
    assert re.search(
        r"readers\.\n\n## Speed\n`python .*2 cores\.\n\n\|  \|\n\| --- \|\n\| a\\\|b \|\n$", page.read_text()
    )


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "results").glob("*.md")), ids=lambda page: page.stem)
def test_each_page_of_results_names_its_commands_dates_and_machines(page: Path) -> None:
    text = page.read_text()
    assert re.search(r"`(\w+=\S+ )*(python benchmarks/|attnfuzz |scripts/)", text)
    assert re.search(r"November 2026|2026-\d\d-\d\d", text)
    assert re.search(r"cores|CPU|H200", text)
