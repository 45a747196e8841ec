"""Which of a dump's calls to import."""

from collections.abc import Sequence

from attnfuzz.harness.dumps.recorded import DumpError, RecordedCall, Status


def chosen_call(calls: Sequence[RecordedCall], number: int | None) -> int:
    """The index of call `number`, counted from 1; without one, of the last that crashed, or of the last of all.

    Raises DumpError for a number that there is none of, and for a method of an object.
    """
    if number is None:
        crashed = [index for index, call in enumerate(calls) if call.status is Status.CRASHED]
        index = crashed[-1] if crashed else len(calls) - 1
    elif 1 <= number <= len(calls):
        index = number - 1
    else:
        raise DumpError(f"there is no call {number}: they are numbered from 1 to {len(calls)}; --list shows them")
    call = calls[index]
    if call.self_id is not None:
        steps = ", ".join(f"{each.function} in {each.folder}" for each in life_of(calls, call))
        raise DumpError(
            f"{call.function} is a method of an object, which no backend here has: it needs a GPU. Choose another call "
            f"with --call; this object's are {steps}"
        )
    return index


def life_of(calls: Sequence[RecordedCall], call: RecordedCall) -> list[RecordedCall]:
    """The calls of the object that `call` is a method of, in order, up to it: __init__, plan, run."""
    same = [each for each in calls if (each.process, each.self_id) == (call.process, call.self_id)]
    return same[: same.index(call) + 1]


def with_earlier(calls: Sequence[RecordedCall], index: int, earlier: int) -> list[RecordedCall]:
    """Call `index` after so many that came before it in its process. DumpError if there are fewer."""
    own = [call for call in calls[: index + 1] if call.process == calls[index].process]
    if earlier >= len(own):
        raise DumpError(f"only {len(own) - 1} calls came before call {index + 1} in its process: lower --earlier")
    return own[len(own) - 1 - earlier :]
