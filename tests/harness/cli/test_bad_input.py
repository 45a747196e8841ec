"""Bad input ends with one clear line that says what to do, and exit code 2."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign_events import finished, started
from command_line import Attnfuzz
from refusals import refused

from attnfuzz.harness.campaign import prepare
from attnfuzz.harness.campaign.events import CampaignStarted, Event
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.cli.main import cli
from attnfuzz.harness.workers import gpu_core
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("command", list(cli.commands))
def test_help_is_clean(attnfuzz: Attnfuzz, command: str) -> None:
    ran = attnfuzz(command, "--help")
    assert ran.code == 0
    assert ran.out.startswith("Usage: attnfuzz " + command)


def test_an_unknown_backend_names_the_closest(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("fuzz", "--backend", "trtllm_mah"), "unknown backend 'trtllm_mah'", "trtllm_mha")


def test_two_budgets_are_one_too_many(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("fuzz", "--examples", "3", "--time", "3s"), "give one of them")


@pytest.mark.parametrize("option", ["--time=1m", "--examples=3", "--jobs=2", "--until-finding"])
def test_a_sanitized_campaign_has_no_other_budget(attnfuzz: Attnfuzz, option: str) -> None:
    ran = attnfuzz("fuzz", "--sanitize", "1m", option)
    refused(ran, f"--sanitize chooses the cases itself: leave {option.partition('=')[0]} out")


def test_a_run_under_a_sanitizer_is_not_repeated(attnfuzz: Attnfuzz) -> None:
    Path("case.json").write_text("{}")
    refused(attnfuzz("replay", "case.json", "--sanitizer", "memcheck", "--repeat", "3"), "leave --repeat out")


def test_a_duration_says_how_it_is_written(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("fuzz", "--time", "soon"), "90s, 10m or 1h30m")


@pytest.mark.parametrize("option", ["--examples", "--jobs"])
def test_a_count_must_be_positive(attnfuzz: Attnfuzz, option: str) -> None:
    refused(attnfuzz("fuzz", option, "0"), option)


@pytest.mark.parametrize(
    "line", ["import os; os._exit(0)", "import atexit, os; atexit.register(os._exit, 0); raise SystemExit(0)"]
)
def test_a_backend_file_does_not_decide_the_exit_code(attnfuzz: Attnfuzz, line: str) -> None:
    Path("mine.py").write_text(line)
    refused(attnfuzz("fuzz", "--backend", f"{Path('mine.py').resolve()}:MINE"), "mine.py")
    assert not Path("attnfuzz-out").exists()


@pytest.mark.parametrize("raised", [SystemExit(0), SystemExit(1), SystemExit("done"), GeneratorExit()])
def test_only_a_command_gives_an_exit_code(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    def leave() -> None:
        raise raised

    monkeypatch.setattr("attnfuzz.harness.cli.backends.names", leave)
    ran = attnfuzz("backends")
    assert ran.code == 2
    assert "this is a bug in attnfuzz" in ran.err


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("torch", "torch is missing in "),
        ("safetensors.torch", "install attnfuzz with its dependencies, or pip install safetensors\n"),
        ("attnfuzz.harness.nothing", "this is a bug in attnfuzz"),
        ("json.nothing", "this is a bug in attnfuzz"),
    ],
)
def test_a_package_that_is_missing_is_no_bug(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch, missing: str, words: str
) -> None:
    def lack() -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr("attnfuzz.harness.cli.backends.names", lack)
    ran = attnfuzz("backends")
    assert ran.code == 2
    assert words in ran.err
    assert ("Traceback" in ran.err) == ("bug" in words)


def test_a_quoted_argument_is_escaped_and_shortened(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("fuzz", "--jobs", f"\x1b]52;c;AAAA\x07{'9' * 5000}")
    refused(ran, "--jobs", "characters ...]")
    assert "\x1b" not in ran.err
    assert "\x07" not in ran.err


def test_a_backend_that_cannot_run_here_says_why(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "attnfuzz.kernels.libraries.torch_sdpa.SdpaBackend.missing", lambda _: "no compiler: install g++"
    )
    refused(attnfuzz("fuzz", "--backend", "torch_sdpa"), "torch_sdpa", "no compiler: install g++")


def test_a_folder_for_core_dumps_that_is_a_file_is_sent_before_anything_is_compiled(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setattr(GpuBackend, "missing", lambda _: None)
    monkeypatch.setenv(gpu_core.VARIABLE, str(tmp_path / "taken"))
    refused(attnfuzz("fuzz", "--backend", "xqa"), "taken", "name a folder, not a file")


def test_an_out_folder_that_is_a_file_is_named(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    refused(attnfuzz("fuzz", "--backend", "torch_sdpa", "--home", "taken"), "taken")


def test_a_full_disk_is_one_line_that_says_how_to_go_on(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk(EventLog):
        def __call__(self, event: Event) -> None:
            if not isinstance(event, CampaignStarted):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().__call__(event)

    monkeypatch.setattr("attnfuzz.harness.campaign.run.EventLog", FullDisk)
    ran = attnfuzz("fuzz", "--backend", "torch_sdpa", "--home", "my home")
    refused(ran, "No space left", "findings so far are kept", "attnfuzz fuzz --resume --home 'my home'")
    assert [campaign.name for campaign in Path("my home/campaigns").iterdir()] == Home(Path("my home")).ids()


def test_a_full_disk_at_the_report_says_how_to_get_it(
    attnfuzz: Attnfuzz, sent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "report.html")

    monkeypatch.setattr("attnfuzz.harness.cli.campaign.write_reports", full)
    sent(started("torch_sdpa"), finished())
    ran = attnfuzz("fuzz", "--backend", "torch_sdpa")
    refused(ran, "No space left", "report.html", "attnfuzz report --home attnfuzz-out")


def test_a_second_campaign_in_the_same_home_is_refused(attnfuzz: Attnfuzz) -> None:
    with Home(Path("attnfuzz-out")).locked():
        refused(attnfuzz("fuzz", "--backend", "torch_sdpa"), "attnfuzz-out is in use", str(os.getpid()), "--home")
    assert not Path("attnfuzz-out/campaigns").exists()


def test_nothing_can_be_resumed_where_nothing_was_begun(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(attnfuzz("fuzz", "--resume", "--home", "empty"), "empty has no campaign", "--home")
    assert not list((tmp_path / "empty").iterdir())
    refused(attnfuzz("fuzz", "--resume", "--home", "missing"), "missing")


def begun(*events: Event) -> Path:
    """The log of a campaign in the home `attnfuzz-out`, with these events after its start."""
    log = Home(Path("attnfuzz-out")).log("20300101-000000")
    with EventLog(log) as write:
        for event in (started("torch_sdpa"), *events):
            write(event)
    return log


@pytest.mark.parametrize("options", [("--examples", "3"), ("--backend", "torch_sdpa"), ("--guard", "left")])
def test_a_resumed_campaign_takes_no_other_options(attnfuzz: Attnfuzz, options: tuple[str]) -> None:
    begun()
    refused(attnfuzz("fuzz", "--resume", "--home", "attnfuzz-out", *options), "with its own options", options[0])


def test_a_ledger_without_a_reason_says_so(attnfuzz: Attnfuzz) -> None:
    Path("attnfuzz-ledger.toml").write_text('[[known]]\nbackend = "torch_sdpa"\nkind = "Hang"\n')
    refused(attnfuzz("fuzz", "--backend", "torch_sdpa"), "attnfuzz-ledger.toml", "reason")


def test_a_corpus_of_something_else_is_refused(attnfuzz: Attnfuzz) -> None:
    corpus = Path("attnfuzz-out/corpus")
    corpus.mkdir(parents=True)
    (corpus / "thesis.tex").touch()
    refused(attnfuzz("fuzz", "--backend", "torch_sdpa"), "attnfuzz-out/corpus")
    assert not Path("attnfuzz-out/campaigns").exists()


def test_a_folder_without_a_case_is_named(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    refused(attnfuzz("replay", str(tmp_path)), "case.json")


def test_an_error_of_ours_is_a_traceback_and_no_finding(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("attnfuzz.harness.cli.backends.names", broken)
    ran = attnfuzz("backends")
    assert ran.code == 2
    assert "RuntimeError: a bug of ours" in ran.err
    assert "please report it" in ran.err


def test_more_jobs_than_the_memory_is_enough_for_are_refused(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "available", lambda: 4 << 30)
    words = "200 jobs need about 150.0 GiB of memory, and 4.0 GiB are available: give --jobs 5"
    refused(attnfuzz("fuzz", "--backend", "torch_sdpa", "--jobs", "200"), words)
