"""The calls of a dump for tests: an unreadable one raises."""

from pathlib import Path

from attnfuzz.harness.dumps.find_calls import read_dump
from attnfuzz.harness.dumps.recorded import RecordedCall


def readable_calls(folder: Path) -> list[RecordedCall]:
    """The calls in a dump, or in the folder of one of its calls: those that `read_dump` can read.

    Raises:
        DumpError: there is none; the message is about the first that can't be read.

    """
    dump = read_dump(folder)
    if not dump.calls:
        raise dump.unreadable[0]
    return list(dump.calls)
