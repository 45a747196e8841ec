"""Parts of a case as Python source."""

from attnfuzz.harness.memory.layout import dense_stride
from attnfuzz.reference.calls import Argument, Buffer, View


def argument(value: Argument) -> str:
    """An argument of a call: views become at(...), which a script defines."""
    if isinstance(value, View):
        return _view(value)
    if isinstance(value, list):
        return f"({''.join(f'{_view(item)}, ' for item in value).rstrip()})"
    return repr(value)


def content(buffer: Buffer) -> str:
    """What a buffer holds: a list of numbers, the text of its bits, or the word for what outputs hold."""
    if buffer.values is not None:
        return repr(list(buffer.values))
    return repr("output" if buffer.bits is None else buffer.bits)


def write(buffer: Buffer) -> str:
    """A call that gives part of a buffer its content."""
    return f"write({buffer.name!r}, {buffer.offset}, {content(buffer)})"


def source(text: str) -> str:
    """A file's text, in lines where that is possible."""
    plain = "'''" not in text and not text.endswith(("\\", "'"))
    return f"r'''{text}'''" if plain else repr(text)


def in_docstring(text: str) -> str:
    """A line of text inside of a docstring."""
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _view(view: View) -> str:
    parts = [repr(view.buffer), repr(view.shape)]
    if view.stride != dense_stride(view.shape) or view.offset or view.dtype:
        parts.append(repr(view.stride))
    if view.offset or view.dtype:
        parts.append(repr(view.offset))
    if view.dtype:
        parts.append(repr(view.dtype.value))
    return f"at({', '.join(parts)})"
