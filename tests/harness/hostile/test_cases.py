"""Case files, ledgers and results that are hostile: one line and exit code 2, before any process starts."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import Attnfuzz
from damage import DAMAGES, damage
from fake_search import observed
from harness_cases import decode_case
from refusals import refused

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.search.shrink import Shrunk
from attnfuzz.reference import case_file

pytestmark = pytest.mark.slow

SHORT = json.loads((Path(__file__).parents[1] / "short_seq_lens.json").read_text())
COMMANDS = ("replay", "triage", "shrink", "export")


def in_turn(*values: Any) -> list[tuple[str, Any]]:
    """Each of these with one of the commands, which read a case alike: each command has several."""
    return [(COMMANDS[turn % len(COMMANDS)], value) for turn, value in enumerate(values)]


EVIL = '**dict(a=__import__("os").system("touch PWNED")), b'


def calls(**changes: object) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(SHORT))
    return content | changes


def with_argument(name: str, value: object) -> dict[str, Any]:
    content = calls()
    content["calls"][0]["arguments"][name] = value
    return content


def with_buffer(**changes: object) -> dict[str, Any]:
    content = calls()
    content["buffers"].append({"name": "more", "dtype": "float32", "size": 1} | changes)
    return content


@pytest.mark.parametrize(("command", "kind"), in_turn(*DAMAGES))
def test_a_damaged_case_is_named(attnfuzz: Attnfuzz, kind: str, command: str) -> None:
    damage(Path("case.json"), kind)
    refused(attnfuzz(command, "case.json"), "case.json")


IMPOSSIBLE = (
    (with_argument(EVIL, 1), "must be a Python identifier"),
    (with_argument("class", 1), "must be a Python identifier"),
    (with_argument("a\0b", 1), "must be a Python identifier"),
    (with_argument("batch_size", 1 << 70), "must fit 64 bits"),
    (calls(backend="a\0b"), "must be the name of a backend"),
    (calls(backend="\x1b]52;c;aGk=\x07.py:X"), "must be the name of a backend"),
    (calls(backend="x" * 300), "unknown backend"),
    (with_buffer(size=1 << 31, drawn={"seed": 1}), "all may have"),
    (with_buffer(dtype="float8_e4m3fn", size=1 << 31, drawn={"seed": 1}), "all may have"),
    (with_buffer(drawn={"seed": -1}), "seed of drawn numbers"),
    (with_buffer(size=1 << 40, zeros=True), "all may have"),
)


@pytest.mark.parametrize(("command", "refused_for"), in_turn(*IMPOSSIBLE), ids=range(len(IMPOSSIBLE)))
def test_an_impossible_case_is_refused_by_every_command(
    attnfuzz: Attnfuzz, refused_for: tuple[dict[str, Any], str], command: str
) -> None:
    content, words = refused_for
    Path("case.json").write_text(json.dumps(content))
    refused(attnfuzz(command, "case.json"), words)
    assert [path.name for path in Path().iterdir()] == ["case.json"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_is_no_case(attnfuzz: Attnfuzz, command: str) -> None:
    refused(attnfuzz(command, "/dev/zero"), "/dev/zero", "neither a file nor a folder")


@pytest.mark.parametrize("kind", ["FIFO", "folder", "link to itself", "not UTF-8", "link to a device", "missing"])
def test_contents_beside_a_case_that_can_not_be_read_are_named(attnfuzz: Attnfuzz, kind: str) -> None:
    Path("case.json").write_text(json.dumps(with_buffer(payload="x")))
    damage(Path("case.payloads.safetensors"), kind)
    refused(attnfuzz("replay", "case.json"), "case.payloads.safetensors")


@pytest.mark.parametrize("output", ["loop", "loop/x.json", "x" * 300, "gone/x.json", "link", "folder"])
@pytest.mark.parametrize("command", ["shrink", "export"])
def test_an_output_that_can_not_be_is_named(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch, command: str, output: str
) -> None:
    case = decode_case("torch_sdpa", 6, 9, padded=2)
    shrunk = Shrunk(case=case, observation=observed(), runs=1, steady=True)
    monkeypatch.setattr("attnfuzz.harness.cli.cases.Runner", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr("attnfuzz.harness.cli.cases.shrink", lambda *_, **__: shrunk)
    exporter = SimpleNamespace(script=lambda _: "print()", default=None)
    monkeypatch.setattr("attnfuzz.harness.cli.cases.Exporter", lambda _, **__: exporter)
    case_file.save("case.json", case)
    Path("loop").symlink_to("loop")
    Path("link").symlink_to("gone/x")
    Path("folder").mkdir()
    ran = attnfuzz(command, "case.json", "-o", output)
    assert "Traceback" not in ran.err
    if command == "shrink" and output == "link":
        # A file is moved there, in place of the link.
        assert ran.code == 1
    else:
        assert ran.code == 2
        assert "Error: " in ran.err


@pytest.mark.parametrize("output", ["loop", "loop/x", "x" * 300, "file", "file/x"])
@pytest.mark.parametrize(
    "command",
    [
        ("fuzz", "--backend", "torch_sdpa", "--examples", "1", "--home"),
        ("sweep", "sglang", "0.5.9", "--examples", "0", "--home"),
        ("findings", "list", "--home"),
        ("corpus", "list", "--home"),
        ("corpus", "prune", "--home"),
        ("report", "--home"),
    ],
    ids=lambda command: command[0],
)
def test_a_folder_that_can_not_be_is_named(attnfuzz: Attnfuzz, command: tuple[str, ...], output: str) -> None:
    Path("loop").symlink_to("loop")
    Path("file").touch()
    ran = attnfuzz(*command, output)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert Path("file").read_bytes() == b""


def test_a_ledger_imports_nothing(attnfuzz: Attnfuzz) -> None:
    Path("mine.py").write_text("open('PWNED', 'w')\n")
    Path("known.toml").write_text('[[known]]\nbackend = "mine.py:X"\nkind = "Hang"\nreason = "x"\nmode = "no mode"\n')
    refused(attnfuzz("fuzz", "--backend", "torch_sdpa", "--ledger", "known.toml"), "no mode")
    assert not Path("PWNED").exists()


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("command", ["sweep", "ledger"])
def test_other_files_that_can_not_be_read_are_named(attnfuzz: Attnfuzz, home: Home, command: str, kind: str) -> None:
    damage(home.path / "sweep.json", kind)
    arguments = {
        "sweep": ("sweep", "--resume", "--home", "out"),
        "ledger": ("fuzz", "--backend", "torch_sdpa", "--ledger", "out/sweep.json"),
    }[command]
    if command == "ledger" and kind == "empty":
        return
    refused(attnfuzz(*arguments), "sweep.json")
