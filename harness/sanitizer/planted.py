"""A planted mistake for each tool of compute-sanitizer. Run as a module under the tool, with the tool's name."""

import sys
from collections.abc import Sequence
from typing import Final

from attnfuzz.harness.sanitizer.run import under
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.sanitizer_tool import SanitizerTool
from attnfuzz.kernels.cuda import hazards

_SHOWS_AS: Final = {
    SanitizerTool.RACECHECK: Kind.RACE,
    SanitizerTool.SYNCCHECK: Kind.BARRIER_MISUSED,
    SanitizerTool.INITCHECK: Kind.UNINITIALIZED_READ,
    SanitizerTool.MEMCHECK: Kind.ILLEGAL_ACCESS,
}


def found(tool: SanitizerTool, seconds: float) -> str:
    """Return "" if a tool reports its mistake within a time, otherwise why not. Raises NotSanitized."""
    log, status = under(tool, ["attnfuzz.harness.sanitizer.planted", tool], seconds, uncached=True)
    if any(report.kind is _SHOWS_AS[tool] for report in log.reports):
        return ""
    if status is None:
        return f"no report within {seconds:.0f} s"
    return f"no report (exit code {status}): {log.summary or log.last_words}"


def main(arguments: Sequence[str]) -> None:
    """Launch the kernel with the mistake."""
    (tool,) = arguments
    hazards.make(list(_SHOWS_AS).index(SanitizerTool(tool)))


if __name__ == "__main__":
    main(sys.argv[1:])
