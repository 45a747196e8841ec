"""Making untrusted text (a backend's message or exception, a path) safe for any document."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_KEPT = {"\n", "\t"}
_UNPRINTABLE = {
    **{code: _REPLACEMENT for code in range(0x20) if chr(code) not in _KEPT},
    **dict.fromkeys(range(0x7F, 0xA0), _REPLACEMENT),
    # Lone surrogates, from paths with undecodable bytes, can't be encoded.
    **dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT),
    0xFFFE: _REPLACEMENT,
    0xFFFF: _REPLACEMENT,
    # Bidirectional controls, which reorder a line, and line separators other than the newline.
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)), _REPLACEMENT),
}


def printable(text: str) -> str:
    """Replace each control character and unencodable character of `text`."""
    return text.translate(_UNPRINTABLE)


def in_a_line(text: str) -> str:
    """Replace like `printable`, and also newlines and tabs, so that `text` stays one line."""
    return printable(text).replace("\n", _REPLACEMENT).replace("\t", _REPLACEMENT)


def shortened(text: str, most: int) -> str:
    """Return `text`, or its first `most` characters and the number of others."""
    return text if len(text) <= most else f"{text[:most]}\n[... {len(text) - most:,} more characters]"


_MOST_OF_A_NAME = 200
_MOST_OF_A_MESSAGE = 10_000


def type_name(error: BaseException) -> str:
    """Return the name of an exception's type, on one line."""
    return label(type(error).__name__)


def words_of(error: BaseException) -> str:
    """Return an exception's type and text."""
    return f"{type_name(error)}: {said_by(error)}"


def said_by(error: BaseException) -> str:
    """Return an exception's text."""
    try:
        return bounded(str(error))
    except BaseException as another:  # noqa: BLE001 - code of the backend
        return f"(its text can't be read: {type_name(another)} in {type_name(error)}.__str__)"


def bounded(foreign: str) -> str:
    """Return untrusted text, printable and of bounded length."""
    # A subclass of str may override methods.
    return shortened(printable(str.__str__(foreign)[: 2 * _MOST_OF_A_MESSAGE]), _MOST_OF_A_MESSAGE)


def label(foreign: str) -> str:
    """Return an untrusted name, printable, on one line and of bounded length."""
    name = str.__str__(foreign)[: _MOST_OF_A_NAME + 1]
    name = name if name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= _MOST_OF_A_NAME else f"{name[: _MOST_OF_A_NAME - 3]}..."
