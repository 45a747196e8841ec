"""Planted mistakes, with output in place of the tool's."""

from pathlib import Path

import pytest

from attnfuzz.harness.doctor import tools
from attnfuzz.harness.doctor.measurement import Mark
from attnfuzz.harness.sanitizer import planted
from attnfuzz.harness.sanitizer.reports import Log, parse
from attnfuzz.harness.verdict.sanitizer_tool import SanitizerTool
from attnfuzz.kernels.cuda import nvcc

BARRIER = ["========= Barrier error detected. Divergent thread(s) in warp.", "=========     at diverging(float *)+0xa0"]
REFUSED = ["========= Error: Unable to find injection library libsanitizer-collection.so"]


@pytest.fixture(autouse=True)
def _outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def under(tool: SanitizerTool, module: list[str], seconds: float, *, uncached: bool) -> tuple[Log, int | None]:
        del seconds
        assert module == ["attnfuzz.harness.sanitizer.planted", tool]
        assert uncached
        return (parse(BARRIER), 0) if tool is SanitizerTool.SYNCCHECK else (parse(REFUSED), 255)

    monkeypatch.setattr(planted, "under", under)


def test_a_tool_works_if_it_reports_its_own_mistake() -> None:
    assert planted.found(SanitizerTool.SYNCCHECK, 1.0) == ""
    refused = "no report (exit code 255): Error: Unable to find injection library libsanitizer-collection.so"
    assert planted.found(SanitizerTool.MEMCHECK, 1.0) == refused


def test_a_row_names_the_tools_that_work_and_quotes_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "missing", lambda: None)
    monkeypatch.setattr(nvcc, "build", lambda *_: Path())
    (row,) = tools.sanitizer_tools()
    assert row.outcome is Mark.FAILS
    assert row.result.startswith("planted mistakes reported by synccheck; racecheck: no report")
