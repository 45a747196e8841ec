"""The rows of an examination."""

import traceback
from collections.abc import Callable, Iterator
from enum import StrEnum

import msgspec

from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.reference.user_error import UserError


class Mark(StrEnum):
    """The outcome of a measurement: it works, it does not, it was not measured, or it is for information alone."""

    WORKS = "ok"
    FAILS = "FAILS"
    NOT_MEASURED = "-"
    INFORMATION = ""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: its title, and its result in words, or the reason why it was not measured."""

    title: str
    result: str
    outcome: Mark


def information(title: str, result: str) -> Measurement:
    """Return a row that is neither good nor bad."""
    return Measurement(title=title, result=result, outcome=Mark.INFORMATION)


def judged(title: str, result: str, *, works: bool) -> Measurement:
    """Return a row that is good or bad."""
    return Measurement(title=title, result=result, outcome=Mark.WORKS if works else Mark.FAILS)


def not_measured(title: str, reason: str) -> Measurement:
    """Return a row with the reason why there is no measurement, in one line."""
    return Measurement(title=title, result=f"not measured: {in_a_line(reason)}", outcome=Mark.NOT_MEASURED)


def guarded(
    title: str, rows: Callable[[], Iterator[Measurement]], warn: Callable[[str], None]
) -> Iterator[Measurement]:
    """Yield the rows of one part. An error ends the part with a row; one that the user can't fix is also reported.

    `warn` gets the traceback of an unexpected error.
    """
    try:
        yield from rows()
    except UserError as error:
        yield not_measured(title, str(error))
    except Exception as error:  # noqa: BLE001 - the other parts are measured
        warn(traceback.format_exc())
        yield not_measured(title, f"{type(error).__name__}: {error}")
