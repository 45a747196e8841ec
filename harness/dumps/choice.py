"""Which of a dump's calls to import."""

from collections.abc import Callable, Sequence

from attnfuzz.harness.dumps.recorded import CallStatus, DumpError, RecordedCall


def chosen_call(
    calls: Sequence[RecordedCall], number: int | None, runs: Callable[[RecordedCall], bool] = lambda _: True
) -> int:
    """The index of call `number`, counted from 1; without one, of the last that crashed, or of the last of all.

    `runs` tells which calls there is a backend for: only where there is none for any are others chosen. FlashInfer's
    functions call each other, and each of them dumps: a decode on XQA is three calls, of which the first is the user's.

    Raises DumpError for a number that there is none of.
    """
    if number is not None:
        if 1 <= number <= len(calls):
            return number - 1
        raise DumpError(f"there is no call {number}: they are numbered from 1 to {len(calls)}; --list shows them")
    able = [index for index, call in enumerate(calls) if runs(call)] or list(range(len(calls)))
    crashed = [index for index in able if calls[index].status is CallStatus.CRASHED]
    return (crashed or able)[-1]


def with_earlier(
    calls: Sequence[RecordedCall], index: int, earlier: int, runs: Callable[[RecordedCall], bool] = lambda _: True
) -> list[RecordedCall]:
    """Call `index` after so many that came before it in its process, of those that `runs` has a backend for.

    Raises DumpError if there are fewer.
    """
    before = [call for call in calls[:index] if call.process == calls[index].process and runs(call)]
    if earlier > len(before):
        raise DumpError(
            f"only {len(before)} calls came before call {index + 1} in its process that there is a backend for: "
            "lower --earlier"
        )
    return [*before[len(before) - earlier :], calls[index]]
