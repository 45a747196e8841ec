"""The tools of compute-sanitizer, and the kinds of failures that they report."""

from enum import StrEnum
from typing import Final

from attnfuzz.harness.verdict.failures import Kind


class SanitizerTool(StrEnum):
    """A tool of compute-sanitizer: races in shared memory, misused barriers, unwritten memory, illegal accesses."""

    RACECHECK = "racecheck"
    SYNCCHECK = "synccheck"
    INITCHECK = "initcheck"
    MEMCHECK = "memcheck"


REPORTED_BY: Final = {
    Kind.RACE: SanitizerTool.RACECHECK,
    Kind.BARRIER_MISUSED: SanitizerTool.SYNCCHECK,
    Kind.UNINITIALIZED_READ: SanitizerTool.INITCHECK,
}
"""Kinds that a run of a case shows only under a tool."""
