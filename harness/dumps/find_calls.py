"""All calls of a dump (FLASHINFER_DUMP_DIR of a run, a folder per call), and the choice of the one to import."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from attnfuzz.harness.dumps.folders import file_in, folders_in, records, unreadable
from attnfuzz.harness.dumps.read_call import METADATA, read_call
from attnfuzz.harness.dumps.recorded import CallStatus, DumpError, RecordedCall

_SESSION = "session.jsonl"
_FLUSHES = "graph_flushes"
_FLUSH = re.compile(r"flush_(\d{1,9})", re.ASCII)
_CALL = re.compile(r"(?P<time>\d{8}_\d{6}_\d{3})_.+_call\d+", re.ASCII)


@dataclass(frozen=True)
class Dump:
    """The calls that can be read, in order, and the errors of the others."""

    calls: tuple[RecordedCall, ...]
    unreadable: tuple[DumpError, ...]


def read_dump(folder: Path) -> Dump:
    """Read the calls in a dump, or in the folder of one of its calls.

    They are ordered by process, and by time within one. A call captured in a graph is one call per snapshot of its
    tensors, which are static buffers with other contents in each replay.

    Raises:
        DumpError: `folder` is no dump.

    """
    try:
        if not folder.is_dir():
            raise DumpError(f"{folder} is not a folder: name the one that FLASHINFER_DUMP_DIR was set to")
    except OSError as error:
        raise unreadable(folder, error) from error
    single = file_in(folder, folder / METADATA) is not None
    folders = [folder] if single else [each for each in folders_in(folder, folder) if _is_call(folder, each)]
    if not folders:
        raise DumpError(
            f"{folder} holds no dumped call: name the folder that FLASHINFER_DUMP_DIR was set to, of a run with "
            "FLASHINFER_LOGLEVEL=10"
        )
    calls: list[RecordedCall] = []
    errors: list[DumpError] = []
    for each in folders:
        try:
            snapshots = _snapshots(folder, each)
        except DumpError as error:
            errors.append(error)
            continue
        for number, snapshot in snapshots:
            try:
                calls.append(read_call(folder, snapshot, number))
            except DumpError as error:
                errors.append(error)
    return Dump(tuple(_in_order(folder, calls)), tuple(errors))


def _is_call(root: Path, folder: Path) -> bool:
    """Return whether a folder is that of a call, complete or not."""
    return _CALL.fullmatch(folder.name) is not None or file_in(root, folder / METADATA) is not None


def _snapshots(root: Path, folder: Path) -> list[tuple[int | None, Path]]:
    """Return the folders with a call's tensors: one per snapshot if it was captured, else the call's own."""
    flushes = folders_in(root, folder / _FLUSHES)
    numbered = [(int(match[1]), each) for each in flushes if (match := _FLUSH.fullmatch(each.name))]
    return [*sorted(numbered)] if numbered else [(None, folder)]


def _in_order(root: Path, calls: list[RecordedCall]) -> list[RecordedCall]:
    """Order calls by process, then by the session's log, or without a complete log by the time in folder names.

    That time is the capture's for every snapshot. It has milliseconds; calls within one are ordered by name, which puts
    `__init__`, `plan` and `run` of a wrapper in order.
    """
    path = file_in(root, root / _SESSION)
    logged = {} if path is None else _logged(path)
    places = [logged.get(call.folder.relative_to(root).as_posix()) for call in calls]

    def by_name(call: RecordedCall) -> tuple[int, str, int, str, int]:
        folder = call.folder if call.snapshot is None else call.folder.parent.parent
        match = _CALL.fullmatch(folder.name)
        return call.process, match["time"] if match else "", call.snapshot or 0, call.function, call.sequence

    if None in places:
        return sorted(calls, key=by_name)
    in_log = sorted(zip(places, calls, strict=True), key=lambda each: (each[1].process, each[0]))
    return [call for _, call in in_log]


def _logged(path: Path) -> Mapping[str, int]:
    """Return the first line that names each folder of a session. The names are only compared, never opened."""
    lines: dict[str, int] = {}
    for line, record in enumerate(records(path)):
        name = record.get("dump_dir")
        if isinstance(name, str):
            parts = PurePosixPath(name).parts
            depth = 3 if _FLUSHES in parts[-2:-1] else 1
            lines.setdefault("/".join(parts[-depth:]), line)
    return lines


def chosen_call(
    calls: Sequence[RecordedCall], number: int | None, runs: Callable[[RecordedCall], bool] = lambda _: True
) -> int:
    """Return the index of call `number`, counted from 1; without one, of the last that crashed, or of the last of all.

    Calls for which `runs` is False (no backend) are chosen only if there are no others. FlashInfer's functions call
    each other, and each of them dumps: a decode on XQA is three calls, of which the first is the user's.
    Raises DumpError if there is no such number.
    """
    if number is not None:
        if 1 <= number <= len(calls):
            return number - 1
        raise DumpError(f"there is no call {number}: calls are numbered from 1 to {len(calls)}; --list shows them")
    able = [index for index, call in enumerate(calls) if runs(call)] or list(range(len(calls)))
    crashed = [index for index in able if calls[index].status is CallStatus.CRASHED]
    return (crashed or able)[-1]


def with_earlier(
    calls: Sequence[RecordedCall], index: int, earlier: int, runs: Callable[[RecordedCall], bool] = lambda _: True
) -> list[RecordedCall]:
    """Call `index` after its process's last `earlier` calls for which `runs` is True. Raises DumpError."""
    before = [call for call in calls[:index] if call.process == calls[index].process and runs(call)]
    if earlier > len(before):
        raise DumpError(
            f"only {len(before)} calls with a backend precede call {index + 1} in its process: lower --earlier"
        )
    return [*before[len(before) - earlier :], calls[index]]
