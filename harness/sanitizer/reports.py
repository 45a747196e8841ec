"""Parsing compute-sanitizer's text.

Its format is that of releases 2021.2 to 2025.3 (CUDA 11.4 to 13.0;
https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html, "Understanding Memcheck Errors" and "Compute
Sanitizer Tool Examples"). Its XML has no published schema, and is written only when the process ends.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from attnfuzz.harness.sanitizer.marks import LaunchMark, mark_in
from attnfuzz.harness.verdict.failures import Kind

PREFIX = "========="

_RACE = re.compile(r"^(?P<level>Error|Warning): Race reported between (?P<access>\w+) access at (?P<at>.+)$")
_AND = re.compile(r"^and (?P<access>\w+) access at (?P<at>.+?)(?: \[(?P<count>\d+) hazards?\])?$")
_UNINITIALIZED = re.compile(r"^Uninitialized __(?P<space>\w+)__ memory read of size \d+ bytes?")
_INVALID = re.compile(r"^Invalid __(?P<space>\w+)__ (?P<access>read|write|atomic)s? of size \d+ bytes?")
_MISALIGNED = "misaligned"
_BARRIER = re.compile(r"^Barrier error detected\. (?P<reason>.+?)\.?$")
_SUMMARY = re.compile(r"^(?:RACECHECK|ERROR) SUMMARY: .*$")
_AT = re.compile(r"^at (?P<at>.+)$")
_FRAME = re.compile(r"^Device Frame: ?(?P<at>.+)$")
_TROUBLE = re.compile(r"^(?:Error: |Internal Sanitizer Error|Unable to|Target application|.*not supported).*$")

_LOCATION = re.compile(r"^(?P<function>.*?)\+0x(?P<offset>[0-9a-f]+)(?: in (?P<source>\S+:\d+))?$")
_OLDER = re.compile(r"^0x(?P<offset>[0-9a-f]+) in (?:(?P<source>[^\s:]+:\d+)(?::(?P<called>.+))?|(?P<function>.+))$")


@dataclass(frozen=True)
class Instruction:
    """An instruction: its function's name, the offset in it, and the source line ("" without debug information)."""

    function: str
    offset: int
    source: str

    @property
    def words(self) -> str:
        """The location as compute-sanitizer prints it."""
        return f"{self.function}+0x{self.offset:x}" + (f" in {self.source}" if self.source else "")


@dataclass
class Report:
    """One report: its kind, the address space, the words of its accesses, its instructions, and its whole text.

    `kernel` is the short name of the CUDA kernel. `case` is the index of the case that ran, `launch` the launch; None
    before the first.
    """

    kind: Kind
    space: str
    words: str
    case: int | None
    launch: LaunchMark | None
    lines: list[str] = field(default_factory=list)
    at: list[Instruction] = field(default_factory=list)
    frames: list[Instruction] = field(default_factory=list)

    @property
    def kernel(self) -> str:
        """The outermost function, without namespaces, parameters and template arguments."""
        where = self.frames or self.at
        return short_name(where[-1].function) if where else ""

    @property
    def place(self) -> str:
        """The address space, the accesses, and the files and lines of their source if they are known."""
        sources = ", ".join(dict.fromkeys(each.source.rpartition("/")[2] for each in self.at if each.source))
        return " at ".join(filter(None, (self.words, sources)))


@dataclass
class Log:
    """The parsed output: reports in order, the indices of the cases that ended, and lines on the tool's own trouble."""

    reports: list[Report]
    ended: list[int]
    unsupported: dict[int, str]
    troubles: list[str]
    summary: str
    tail: list[str]

    @property
    def last_words(self) -> str:
        """A line on why the process ended early: of the tool, else the last line of the process."""
        return next(filter(None, [*self.troubles, *reversed(self.tail)]), "it printed nothing")


def parse(lines: Iterable[str]) -> Log:
    """Parse the output of compute-sanitizer and of the process that runs under it, in one stream."""
    log = Log([], [], {}, [], "", [])
    case: int | None = None
    launch: LaunchMark | None = None
    report: Report | None = None
    for line in lines:
        if not line.startswith(PREFIX):
            report = None
            mark = mark_in(line)
            if mark is None:
                log.tail = [*log.tail[-20:], line.rstrip()]
            elif mark.launch is not None:
                launch = mark.launch
            elif mark.begins:
                case, launch = mark.case, None
            else:
                log.ended.append(mark.case)
                if mark.unsupported is not None:
                    log.unsupported[mark.case] = mark.unsupported
            continue
        text = line[len(PREFIX) :].strip()
        begun = _begun(text, case, launch)
        if begun is not None:
            report = begun
            log.reports.append(report)
        elif not text:
            report = None
        elif _SUMMARY.match(text):
            log.summary, report = text, None
        elif report is not None:
            _continue(report, text)
        elif _TROUBLE.match(text):
            log.troubles.append(text)
    return log


def _begun(text: str, case: int | None, launch: LaunchMark | None) -> Report | None:
    """Return the report that a line begins, or None."""
    if found := _RACE.match(text):
        level = "" if found["level"] == "Error" else ", a warning"
        words = f"shared memory, {found['access'].lower()}{level}"
        report = Report(Kind.RACE, "shared", words, case, launch)
        report.at.append(_location(found["at"]))
    elif found := _UNINITIALIZED.match(text):
        report = Report(Kind.UNINITIALIZED_READ, found["space"], f"{found['space']} memory", case, launch)
    elif found := _INVALID.match(text):
        words = f"{found['space']} memory, {found['access']}"
        report = Report(Kind.ILLEGAL_ACCESS, found["space"], words, case, launch)
    elif found := _BARRIER.match(text):
        report = Report(Kind.BARRIER_MISUSED, "", found["reason"], case, launch)
    else:
        return None
    report.lines.append(text)
    return report


def _continue(report: Report, text: str) -> None:
    """Add a line to a report."""
    report.lines.append(text)
    if found := _AND.match(text):
        report.at.append(_location(found["at"]))
        other = found["access"].lower()
        if f" and {other}" not in report.words:
            first, comma, rest = report.words.partition(", a warning")
            report.words = f"{first} and {other}{comma}{rest}"
    elif found := _FRAME.match(text):
        report.frames.append(_location(found["at"]))
    elif (found := _AT.match(text)) and not report.at:
        report.at.append(_location(found["at"]))
    elif report.kind is Kind.ILLEGAL_ACCESS and text.endswith(_MISALIGNED):
        report.kind = Kind.MISALIGNED


def _location(text: str) -> Instruction:
    if found := _LOCATION.match(text):
        return Instruction(found["function"], int(found["offset"], 16), found["source"] or "")
    if found := _OLDER.match(text):
        function = found["function"] or found["called"] or ""
        return Instruction(function, int(found["offset"], 16), found["source"] or "")
    return Instruction(text, 0, "")


def short_name(function: str) -> str:
    """Return the name of a demangled function, without its result, namespaces, template arguments and parameters."""
    depth, name = 0, ""
    # "(anonymous namespace)::f" has brackets before its name.
    for letter in function.replace("(anonymous namespace)::", "").removeprefix("void "):
        if letter == "(" and depth == 0 and name:
            break
        depth = max(0, depth + (letter in "<(") - (letter in ">)"))
        if depth == 0 and letter not in ">)":
            name += letter
    return name.split("::")[-1].strip()


def distinct(reports: Iterable[Report]) -> Iterator[tuple[Report, int]]:
    """Yield the first report of each kind, kernel and place, with the number of reports like it."""
    first: dict[tuple[Kind, str, str], list[Report]] = {}
    for report in reports:
        first.setdefault((report.kind, report.kernel, report.place), []).append(report)
    for alike in first.values():
        yield alike[0], len(alike)
