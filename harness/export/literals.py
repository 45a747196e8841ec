"""Foreign text as parts of Python source: whatever it holds, it stays text there."""


def source(text: str) -> str:
    """A file's text, in lines where that is possible."""
    plain = "'''" not in text and not text.endswith(("\\", "'"))
    return f"r'''{text}'''" if plain else repr(text)


def in_docstring(text: str) -> str:
    """Text as one line inside of a docstring in triple double quotes."""
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return text.replace("\\", "\\\\").replace('"""', "'''")


def quoted(value: object) -> str:
    """A value as Python writes it, but text in double quotes where that takes no escapes."""
    text = repr(value)
    inner = text[1:-1]
    return f'"{inner}"' if isinstance(value, str) and text[0] == "'" and '"' not in inner else text
