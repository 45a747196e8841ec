"""Foreign text (a backend's message, what it raised, a path) made fit to be written into any document."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_KEPT = {"\n", "\t"}
_UNPRINTABLE = {
    **{code: _REPLACEMENT for code in range(0x20) if chr(code) not in _KEPT},
    **dict.fromkeys(range(0x7F, 0xA0), _REPLACEMENT),
    # Halves of surrogate pairs can't be encoded; how a path with undecodable bytes arrives.
    **dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT),
    0xFFFE: _REPLACEMENT,
    0xFFFF: _REPLACEMENT,
    # What orders text anew: a line would read as another one. What ends lines, and is no newline.
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)), _REPLACEMENT),
}


def printable(text: str) -> str:
    """`text` with control characters and what can't be encoded replaced, one by one."""
    return text.translate(_UNPRINTABLE)


def in_a_line(text: str) -> str:
    """`text` as `printable` gives it, and with what ends lines replaced too: no part of it passes for another line."""
    return printable(text).replace("\n", _REPLACEMENT).replace("\t", _REPLACEMENT)


def shortened(text: str, most: int) -> str:
    """`text`, or its first `most` characters and how many there were more."""
    return text if len(text) <= most else f"{text[:most]}\n[... {len(text) - most:,} more characters]"


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
        return bounded(str(error))
    except BaseException as another:  # noqa: BLE001 - code of the backend, like what raised
        return f"(its text can't be had: {type_name(another)} in {type_name(error)}.__str__)"


def bounded(foreign: str) -> str:
    """Foreign text, printable and of bounded length."""
    # A subclass of str may have methods of its own.
    return shortened(printable(str.__str__(foreign)[: 2 * _MOST_OF_A_MESSAGE]), _MOST_OF_A_MESSAGE)


def label(foreign: str) -> str:
    """A foreign name, printable, on one line and of bounded length."""
    name = str.__str__(foreign)[: _MOST_OF_A_NAME + 1]
    name = name if name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= _MOST_OF_A_NAME else f"{name[: _MOST_OF_A_NAME - 3]}..."
