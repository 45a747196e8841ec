"""Foreign text (a backend's message, a path) made fit to be written into any document."""

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
