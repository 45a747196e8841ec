"""Hostile content for any file: a valid one with fields of other types or values, and damaged bytes."""

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

TEXTS = (
    "",
    " ",
    "\0",
    "\x1b]52;c;aGk=\x07",
    "\x9b31m\x1b[2J",
    "[/red]",
    "[bold]x",
    "../../outside/canary",
    "../" * 20 + "etc/passwd",
    "/etc/passwd",
    "{0.__class__.__init__.__globals__}",
    "{{ 7 * 7 }}{% raw %}",
    "%s%n%d",
    "__import__('os').system('touch PWNED')",
    '**dict(a=__import__("os").system("touch PWNED")), b',
    '"""\nopen("PWNED", "w")\n"""',
    "\u202egnp.exe\u2028",
    "a\nError: b\nNo findings in either.",
    "</script></style><script>alert(1)</script>",
    "]]></failure>&lol;",
    "| `x` | @everyone\n# x",
    "'; touch PWNED; '$(touch PWNED)`touch PWNED`",
    "x" * 300,
    "x" * 5000,
    "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 300,
    "\ud800",
    "evil.py:X",
    "../evil.py:X",
    "redis://[",
    "sglang==\0:trtllm_mha",
    "torch_sdpa",
    "trtllm_mha@21649-before",
    "class",
)
"""Text that ends strings, paths, tags, lines or processes."""

_TOKENS = (
    *("-1", "0", "1", "2", "64", "257", "1000000", str(2**31), str(2**63), str(2**64), "9" * 30, "9" * 5000),
    *("0.5", "-0.0", "1e-320", "1e300", "-1e300", "1e999", "NaN", "-Infinity"),
    *("null", "true", "[]", "{}", "[[]]", '{"a": {}}', "[" * 200 + "]" * 200, "[" * 3000 + "]" * 3000),
    "[" + "0," * 20000 + "0]",
)
"""Values as JSON spells them, some of which it does not have."""

_PLACE = "@@{}@@"


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in JSON content, by keys and indices, except for the content itself."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    # Of a long list, some are as good as all.
    for key, member in list(items)[:8]:
        yield (*path, key)
        yield from paths(member, (*path, key))


@st.composite
def hostile_json(draw: DrawFn, content: Any) -> str:
    """`content` as JSON with one to three values, names or members that are hostile."""
    content = json.loads(json.dumps(content))
    tokens: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        all_paths = list(paths(content))
        if not all_paths:
            break
        *to, key = draw(st.sampled_from(all_paths))
        owner = content
        for step in to:
            owner = owner[step]
        _change(draw, owner, key, tokens)
    text = json.dumps(content)
    for number, token in enumerate(tokens):
        text = text.replace(json.dumps(_PLACE.format(number)), token)
    return text


def _change(draw: DrawFn, owner: Any, key: Any, tokens: list[str]) -> None:
    how = draw(st.sampled_from(["text", "text", "text", "token", "token", "number", "rename", "drop", "twice"]))
    if how == "text":
        owner[key] = draw(st.sampled_from(TEXTS))
    elif how == "token":
        tokens.append(draw(st.sampled_from(_TOKENS)))
        owner[key] = _PLACE.format(len(tokens) - 1)
    elif how == "number" and isinstance(owner[key], int | float):
        owner[key] = draw(st.integers(-4, 300)) if isinstance(owner[key], int) else draw(st.floats(-10, 1e6))
    elif how == "rename" and isinstance(owner, dict):
        owner[draw(st.sampled_from(TEXTS))] = owner.pop(key)
    elif how == "drop":
        del owner[key]
    elif isinstance(owner, list):
        owner.extend([owner[key]] * draw(st.sampled_from([1, 3, 2000])))


@st.composite
def hostile_bytes(draw: DrawFn, text: SearchStrategy[str]) -> bytes:
    """Text in UTF-8, one in five times with bytes that are damaged."""
    data = draw(text).encode(errors="surrogatepass")
    where = draw(st.integers(0, len(data)))
    how = draw(st.sampled_from(["whole"] * 8 + ["torn", "\xff"]))
    if how == "torn":
        return data[:where]
    return data if how == "whole" else data[:where] + b"\xff" + data[where:]


@st.composite
def hostile_lines(draw: DrawFn, lines: list[Any]) -> str:
    """Lines of JSON, one of which is hostile."""
    number = draw(st.integers(0, len(lines) - 1))
    written = [json.dumps(line) for line in lines]
    written[number] = draw(hostile_json(lines[number]))
    return "".join(f"{line}\n" for line in written)


@st.composite
def hostile_toml(draw: DrawFn, tables: list[Any]) -> str:
    """A ledger's tables, whose values are spelled as in JSON, which TOML has mostly too."""
    written = []
    for table in tables:
        lines = _spelled(table)
        name = draw(st.sampled_from([*lines, draw(st.sampled_from(TEXTS))]))
        lines[name] = draw(st.one_of(st.sampled_from(_TOKENS), st.sampled_from(TEXTS).map(json.dumps)))
        written.append(lines)
    return _tables(written)


def toml(tables: list[Any]) -> str:
    """A ledger with these tables."""
    return _tables([_spelled(table) for table in tables])


def _spelled(table: dict[str, Any]) -> dict[str, str]:
    # A date is no string in TOML.
    return {name: value if name == "added" else json.dumps(value) for name, value in table.items()}


def _tables(tables: list[dict[str, str]]) -> str:
    entries = (f"{json.dumps(name)} = {value}\n" for table in tables for name, value in table.items())
    return "[[known]]\n" + "".join(entries)
