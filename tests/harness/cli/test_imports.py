"""Help, version and completion answer at once: torch is imported when a command is run."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from command_line import Attnfuzz

from attnfuzz.harness.cli.commands.cases import REPEATS, SANITIZERS, TARGETS
from attnfuzz.harness.cli.flashinfer.commands import CONTENTS
from attnfuzz.harness.cli.main import cli
from attnfuzz.harness.cli.selftests.commands import TIERS
from attnfuzz.harness.dumps.contents import Contents
from attnfuzz.harness.export import Target
from attnfuzz.harness.triage import repeats
from attnfuzz.harness.verdict.sanitizer_tool import SanitizerTool
from attnfuzz.harness.verdict.tiers import Tier

HEAVY = ("torch", "hypothesis", "numpy", "jinja2", "safetensors", "tvm_ffi", "flashinfer", "attnfuzz.reference.case")

CHILD = """
import sys
from attnfuzz.harness.cli.main import main
for line in sys.argv[1].split(";"):
    sys.argv = ["attnfuzz", *line.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (line, ended.code)
    assert not (loaded := set(sys.modules) & set(%r)), (line, loaded)
"""


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*names, name)
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)


@pytest.mark.slow
def test_help_and_version_import_nothing_heavy() -> None:
    """In a process of its own, one for all commands: this one has imported torch."""
    lines = ["--version", "--help", *(f"{' '.join(names)} --help" for names in commands(cli))]
    ran = subprocess.run(
        [sys.executable, "-c", CHILD % (HEAVY,), ";".join(lines)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Usage: attnfuzz") == len(lines) - 1


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("attnfuzz sw", {"sweep"}),
        ("attnfuzz findings ", {"list", "show", "forget"}),
        ("attnfuzz fuzz --pres", {"--preset"}),
        ("attnfuzz fuzz --preset ", {"quick", "nightly", "deep"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch, line: str, completed: set[str]
) -> None:
    monkeypatch.setenv("_ATTNFUZZ_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    ran = attnfuzz()
    assert (ran.code, ran.err) == (0, "")
    assert set(ran.out.split()) == {f"plain,{each}" for each in completed}


def test_choices_that_are_repeated_for_the_command_line_are_those_of_the_harness() -> None:
    assert tuple(Tier) == TIERS
    assert tuple(Contents) == CONTENTS
    assert tuple(Target) == TARGETS
    assert tuple(SanitizerTool) == SANITIZERS
    assert repeats.REPEATS == REPEATS
