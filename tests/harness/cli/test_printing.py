"""What is printed: foreign text stays text, on a terminal and in a pipe."""

import ast
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_archive import FINGERPRINT, archive, found
from harness_cases import decode_case
from msgspec.structs import replace
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import attnfuzz.harness.cli
from attnfuzz.harness.cli.terminal import Exit, Terminal, echo, new_table
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.printable import in_a_line, printable
from attnfuzz.reference import case_file

Run = Callable[..., Any]
HOSTILE = "a\x1b]52;c;aGk=\x07b\x9b31mc\u202ed\u2028e[/red]:smile:"


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width is given."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.usefixtures("pipe")
def test_foreign_text_is_neither_markup_nor_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    for each in (HOSTILE, Text(HOSTILE)):
        terminal.print(each)
    echo(HOSTILE)
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    with terminal.capture() as captured:
        terminal.print(table)
    assert captured.get().replace("\n", "").isprintable()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("a\N{REPLACEMENT CHARACTER}]52;c;aGk=")
        assert "[/red]:smile:" in line
        assert line.isprintable()


def test_a_terminal_is_still_controlled_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    terminal.file = io.StringIO()
    with Live(Text(HOSTILE), console=terminal, transient=True):
        pass
    written = terminal.file.getvalue()
    assert "\x1b[2K" in written
    assert "\x1b]52" not in written
    assert "\x9b" not in written


@pytest.mark.usefixtures("pipe")
def test_a_pipe_gets_names_unbroken(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 300 + " " + "y" * 300
    table = Table(box=None)
    table.add_column(overflow="fold")
    table.add_row(name)
    Terminal().print(table)
    Terminal().print(name)
    assert [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()] == [name, name]


@pytest.mark.usefixtures("pipe")
def test_lines_of_a_pipe_end_where_their_text_ends(capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table("backend", "supports")
    table.add_row("short", "decode\n  and extend")
    table.add_row("a longer name", Text("every mode", style="bold"))
    Terminal().print(table)
    assert capsys.readouterr().out.splitlines() == [
        "backend        supports",
        "short          decode",
        "                 and extend",
        "a longer name  every mode",
    ]


def test_a_pipe_that_was_closed_is_an_error_and_no_exit_code_of_rich() -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    terminal = Terminal()
    terminal.file = Closed()
    with pytest.raises(BrokenPipeError):
        terminal.print("text")


@pytest.mark.slow
@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    "line", ["--help", *(pytest.param(of, marks=pytest.mark.long) for of in ("bugs list", "defects list --json -"))]
)
def test_a_reader_that_leaves_ends_a_command_without_a_message(line: str) -> None:
    """In a process: the interpreter flushes standard output once more when it exits, and would complain there."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "attnfuzz.harness.cli.main", *line.split()]
    with os.fdopen(writer, "wb") as closed:
        ran = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (Exit.CLOSED, "")


def test_columns_are_kept_where_they_are_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    Terminal().print("word " * 10)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 20


def test_commands_print_through_one_console() -> None:
    folder = Path(attnfuzz.harness.cli.__file__).parent
    for path in folder.glob("**/*.py"):
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert "print" not in calls, path
        assert "click.secho" not in calls, path
        assert "Console" not in calls, path
        # A script and JSON go out as they are: what they hold is escaped by their own rules.
        allowed = {folder / "terminal.py": 2, folder / "cases.py": 1}
        assert calls.count("click.echo") == allowed.get(path, 0), path


def test_a_line_stays_one() -> None:
    assert in_a_line("a\nb\tc") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    assert printable("a\nb") == "a\nb"
    assert printable("\u202e\u2066\u200f") == "\N{REPLACEMENT CHARACTER}" * 3


@pytest.mark.usefixtures("pipe")
def test_the_name_of_a_finding_is_listed_as_text(
    attnfuzz: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    path, _ = archive(tmp_path / "attnfuzz-out").file(found(), FINGERPRINT)
    path.rename(path.with_name("evil\x1b]52;c;aGk=\x07\nnew [red]"))
    *_, listed = lines = attnfuzz("findings", "list").out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert listed.endswith("new [red]")
    shown = attnfuzz("findings", "show", "evil")
    assert shown.code == 0
    assert shown.out.replace("\n", "").isprintable()


@pytest.mark.parametrize("fails", [True, False])
def test_a_path_with_markup_is_replayed(attnfuzz: Run, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    class Replayed:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> "Replayed":  # noqa: PYI034 - a test double
            return self

        def __exit__(self, *_: object) -> None: ...
        def verdict(self, _: object) -> Verdict:
            seen = replace(found().observation, message=HOSTILE)
            return Verdict(observations=(seen,) if fails else ())

        def explained(self, _: object, verdict: Verdict) -> Verdict:
            return verdict

    monkeypatch.setattr("attnfuzz.harness.cli.cases.Runner", Replayed)
    Path("a[").mkdir()
    case_file.save("a[/red]b.json", decode_case("torch_sdpa", 6, 9, padded=2))
    ran = attnfuzz("replay", "a[/red]b.json")
    assert ran.code == int(fails)
    assert "a[/red]b.json" in ran.out.replace("\n", "")
    assert "\x1b" not in ran.out


def test_errors_of_click_are_escaped(attnfuzz: Run) -> None:
    ran = attnfuzz("replay", HOSTILE)
    assert ran.code == 2
    assert "\x1b" not in ran.err
    assert "\x9b" not in ran.err
    assert isinstance(Terminal(), Console)
