"""Lines by which a process under compute-sanitizer names the case and launch that run, among the reports."""

import msgspec

_MARK = "attnfuzz-mark "


class LaunchMark(msgspec.Struct, frozen=True):
    """A launch: its kernels' names as in the journal, the index of its step, and the mode."""

    kernel: str
    step: int
    mode: str


class CaseMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The begin or end of the case of this index, or a launch of it.

    `unsupported` is the reason for which the backend did not run it.
    """

    case: int
    begins: bool = False
    launch: LaunchMark | None = None
    unsupported: str | None = None

    @property
    def line(self) -> str:
        """The line to print."""
        return f"{_MARK}{msgspec.json.encode(self).decode()}"


def mark_in(line: str) -> CaseMark | None:
    """Return the mark that a line is, or None."""
    if not line.startswith(_MARK):
        return None
    try:
        return msgspec.json.decode(line[len(_MARK) :], type=CaseMark)
    except msgspec.DecodeError:
        return None
