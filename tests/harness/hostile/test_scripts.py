"""Exported scripts: what a case holds stays text in them, whether or not it was checked when the case was read."""

import ast
import io
import tokenize
from pathlib import Path

import pytest
from msgspec.structs import replace

from attnfuzz.harness.export.script import render_script
from attnfuzz.harness.export.target import Target
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallCase, View

SHORT = case_file.load(Path(__file__).parents[1] / "short_seq_lens.json")
assert isinstance(SHORT, CallCase)
CASE: CallCase = SHORT

EVIL = "PWNED()"
HOSTILE = [
    EVIL,
    f'"""\n{EVIL}\n"""',
    f"'''\n{EVIL}\n'''",
    f'" + {EVIL} + "',
    f"', {EVIL}, '",
    f"\\\n{EVIL}",
    f"x\r{EVIL}",
    f"x\n{EVIL}\n",
    f"x\u2028{EVIL}",
    f"x\f\v\x1c{EVIL}",
    f"\0{EVIL}",
    f"\\N{{{EVIL}}}",
    f"{{{EVIL}}} {{{{ {EVIL} }}}} {{% {EVIL} %}}",
    '"""' * 3 + "\\",
    "\\" * 3 + '"',
    f"**dict(a={EVIL}), b",
    f"b=1, **{{'c': {EVIL}}}",
    "\ud800",
    "\u202e\x1b]52;c;aGk=\x07",
    f"# coding: utf-7\n{EVIL}",
]


def called(text: str) -> set[str]:
    """The names that a script calls."""
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
    return {node.id for node in nodes}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "text"),
    [*((Target.NATIVE, text) for text in HOSTILE), *((Target.FLASHINFER, text) for text in HOSTILE[::5])],
    # The text is no name for a folder.
    ids=[*(f"native-{n}" for n in range(len(HOSTILE))), *(f"flashinfer-{n}" for n in range(0, len(HOSTILE), 5))],
)
def test_no_text_of_a_case_becomes_code(target: Target, text: str) -> None:
    (call,) = CASE.calls
    names = {buffer.name: f"{buffer.name}{text}" for buffer in CASE.buffers}
    renamed = {
        name: replace(value, buffer=names[value.buffer]) if isinstance(value, View) else value
        for name, value in call.arguments.items()
    }
    hostile = replace(
        CASE,
        buffers=tuple(replace(buffer, name=names[buffer.name]) for buffer in CASE.buffers),
        calls=(replace(call, arguments=renamed | {"kv_layout": text, text: 1}),),
        answer=None,
        notes=(text,),
        mode=text,
    )
    seen = Observation(kind=Kind.ILLEGAL_ACCESS, place=text, message=text, kernel=text)
    script = render_script("0" * 12, hostile, seen, target)
    assert "PWNED" not in called(script)
    # What Python reads is what was written: in UTF-8, and without what it refuses.
    code = script.encode()
    assert b"\0" not in code
    list(tokenize.tokenize(io.BytesIO(code).readline))
    compile(code, "script.py", "exec")
