"""Every option and argument of every command, given what no user should give: one message, exit code 2, and at once.

The commands are read from click itself, so that an option which is added is tried too. Nothing is started: what gets so
far is stopped there.
"""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NoReturn

import click
import pytest
from command_line import Attnfuzz, commands
from harness_cases import decode_case

from attnfuzz.harness.campaign.jobs import JobProcesses
from attnfuzz.harness.cli.main import cli
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.workers.lifeline import Lifeline
from attnfuzz.reference import case_file
from attnfuzz.reference.user_error import UserError

pytestmark = pytest.mark.slow

LONG = "x" * 5000
DIGITS = "9" * 5000

TEXTS = ["", "\n", LONG, "[/red]", "\x1b]52;c;AAAA\x07", "a\0b", "\udcff", "-", "--", "%s{}$(x)"]

NUMBERS = [
    DIGITS,
    *["9223372036854775808", "18446744073709551616", "-1", "0", "nan", "inf", "-inf", "1e-320", "1e400", "0x10", "1_0"],
    "9" * 400,
]

PATHS = [
    *[
        "missing",
        "fifo",
        "folder",
        "loop",
        "/dev/zero",
        "/dev/null",
        "/proc/nothing",
        "/sys/nothing",
        "file/child",
        "empty.json",
        "/",
        "/proc/self/mem",
    ],
    *("x" * 300, "x/" * 2500),
]

BACKENDS = [
    *[
        "fifo.py:MINE",
        "loop.py:MINE",
        "folder.py:MINE",
        "file.py:",
        ".py:",
        ":",
        "/dev/zero.py:MINE",
        "sglang@loop:trtllm_mha",
    ],
    *(
        f"{LONG}.py:MINE",
        f"mine.py:{LONG}",
        "a\0b.py:MINE",
        f"hopper:{LONG}",
        f"trtllm_mha+{LONG}",
        f"trtllm_mha@{DIGITS}",
    ),
    *(f"sglang=={DIGITS}:trtllm_mha", "sglang==0.5.9\0:trtllm_mha", "hopper:sglang==0.5.9:trtllm_mha:trtllm_mha"),
    *("sglang@/a\0b:trtllm_mha", f"sglang@/{LONG}:trtllm_mha", "sglang@/dev/zero:trtllm_mha"),
]

SPECIAL = {
    "versions": [
        *(DIGITS, f"{DIGITS}..latest", f"0.5.9..{DIGITS}", "..", ",", "latest..latest", "0.5.9," * 1000, "0.5.9\0"),
    ],
    "sites": [
        *(f"{DIGITS}=folder", "=", "0.6.8=", "0.6.8=loop", "0.6.8=fifo", "0.6.8=a\0b", f"0.6.8={LONG}"),
    ],
    "arch": [DIGITS, "9.0a " * 1000, "9.0\0", f"{DIGITS}.0a"],
    "ray": ["ray://[", "ray://host:99999999"],
    "seconds": [f"{DIGITS}s", "9" * 400, "1s" * 5000, "3661d", "0s", "-1s", "1e9s"],
    **dict.fromkeys(("backend", "backends", "names", "named", "kinds"), BACKENDS),
}


COMMANDS = dict(commands(cli))


class AtTheDoor(UserError):
    """Nothing was wrong so far, and a process would be started now."""


@pytest.fixture(autouse=True)
def hostile_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of what is no good file, and a system that starts and reaches nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("fifo", "fifo.py"):
        os.mkfifo(name)
    for name in ("loop", "loop.py"):
        Path(name).symlink_to(name)
    for name in ("folder", "folder.py"):
        Path(name).mkdir()
    for name in ("file", "empty.json", "file.py"):
        Path(name).touch()
    case_file.save(Path("case.json"), decode_case("torch_sdpa"))

    def stop(*_: object, **__: object) -> NoReturn:
        raise AtTheDoor("at the door")

    def unreachable(*_: object) -> NoReturn:
        raise ConnectionRefusedError

    for starting in (Lifeline, JobProcesses):
        monkeypatch.setattr(starting, "__init__", stop)
    monkeypatch.setattr(subprocess.Popen, "__init__", stop)
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda _: None)
    monkeypatch.setattr(socket.socket, "connect", unreachable)


def hostile(option: click.Parameter) -> list[str]:
    """Values for an option or an argument, by what it takes."""
    if isinstance(option, click.Option) and option.is_flag:
        return []
    values = SPECIAL.get(option.name or "", [])
    if isinstance(option.type, click.Path):
        return [*values, *PATHS]
    numeric = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    return [*values, *(NUMBERS if numeric else []), *TEXTS]


def others(command: click.Command, tried: click.Parameter) -> list[str]:
    """What the command needs beside the parameter that is tried."""
    filled = []
    for each in command.params:
        if isinstance(each, click.Argument) and each is not tried and (each.required or each.name == "path"):
            filled.append("case.json" if isinstance(each.type, click.Path) else "something")
        elif isinstance(each, click.Argument) and each is not tried and each.name == "package":
            filled.append("sglang")
    return filled


def lines(command: click.Command) -> Iterator[list[str]]:
    for tried in command.params:
        for value in hostile(tried):
            filled = others(command, tried)
            if isinstance(tried, click.Argument):
                at = [each for each in command.params if isinstance(each, click.Argument)].index(tried)
                yield ["--", *filled[:at], value, *filled[at:]]
            else:
                yield [f"{max(tried.opts, key=len)}={value}", *filled]


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_a_hostile_command_line_is_one_message(attnfuzz: Attnfuzz, names: tuple[str, ...], every: int) -> None:
    wrong = []
    # With one in six, others for each command: they share most of their options.
    for line in islice(lines(COMMANDS[names]), [*COMMANDS].index(names) % every, None, every):
        ran = attnfuzz(*names, *line)
        if (
            ran.code not in {0, 2}
            or "Traceback" in ran.err
            or "bug in attnfuzz" in ran.err
            or ran.err != printable(ran.err)
            or (ran.code == 2 and not ran.err)
            or len(re.findall("^Error: ", ran.err, flags=re.MULTILINE)) > 1
            or max(map(len, [*ran.err.split(), ""])) > 1000
            or len(ran.err) > 6000
        ):
            wrong.append(([each[:80] for each in line], ran.code, ran.err[-700:]))
    assert not wrong
