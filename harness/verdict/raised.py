"""What a backend raised, in words: fit for a verdict whatever the exception's own code does."""

from attnfuzz.harness.verdict.printable import printable, shortened

_MOST_OF_A_NAME = 200
_MOST_OF_A_MESSAGE = 10_000


def type_name(error: BaseException) -> str:
    """The name of an exception's type, on one line."""
    return label(type(error).__name__)


def words_of(error: BaseException) -> str:
    """The name of an exception's type, and what it says."""
    return f"{type_name(error)}: {said_by(error)}"


def said_by(error: BaseException) -> str:
    """What an exception says."""
    try:
        return text(str(error))
    except BaseException as another:  # noqa: BLE001 - code of the backend, like what raised
        return f"(its text can't be had: {type_name(another)} in {type_name(error)}.__str__)"


def text(foreign: str) -> str:
    """Foreign text, printable and of bounded length."""
    # A subclass of str may have methods of its own.
    return shortened(printable(str.__str__(foreign)[: 2 * _MOST_OF_A_MESSAGE]), _MOST_OF_A_MESSAGE)


def label(foreign: str) -> str:
    """A foreign name, printable, on one line and of bounded length."""
    name = str.__str__(foreign)[: _MOST_OF_A_NAME + 1]
    name = name if name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= _MOST_OF_A_NAME else f"{name[: _MOST_OF_A_NAME - 3]}..."
