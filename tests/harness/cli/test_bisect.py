"""`attnfuzz bisect`: releases that lie on disk or that pip installs, with a script or a case."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import Attnfuzz
from fake_releases import make_site, make_wheel, replace_pip
from harness_cases import decode_case

from attnfuzz.kernels.native import build
from attnfuzz.reference import case_file

pytestmark = pytest.mark.slow

MALFORMED = str(Path(__file__).parents[1] / "short_seq_lens.json")


@pytest.fixture(autouse=True)
def _own_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed into the user's cache, nor from anywhere but a folder of the test, by a stand-in for pip."""
    # Compiling the native kernels again takes 8 s.
    kernels = build.compiled(lambda _: None)
    (tmp_path / kernels.name).symlink_to(kernels)
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path))
    replace_pip(tmp_path, monkeypatch)


def script(failing: str = "", unable: str = "") -> list[str]:
    """Arguments that name a script, whose fault shows in versions of `failing`, and which can't run in `unable`."""
    Path("script.py").write_text(
        "import sys, flashinfer\n"
        "print('called with', flashinfer.__version__)\n"
        f"fails, unable = (flashinfer.__version__ in versions for versions in {(failing.split(), unable.split())})\n"
        "sys.exit(1 if fails else 2 if unable else 0)\n"
    )
    return ["--script", "script.py"]


def sites(*versions: str) -> list[str]:
    """Arguments that name a site of each version."""
    return [
        word for version in versions for word in ("--site", f"{version}={make_site(Path(f'site-{version}'), version)}")
    ]


def table(ran: Any) -> list[list[str]]:
    """The lines of the table, without its head, in words."""
    return [line.split() for line in ran.out.split("\n\n")[0].splitlines()[1:]]


def test_it_says_where_a_fault_began_and_ended(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bisect", *script("0.6.9 0.6.10"), *sites("0.6.10", "0.6.8", "0.7.0", "0.6.9"))
    assert ran.code == 1
    assert table(ran) == [
        ["0.6.8", "passes"],
        ["0.6.9", "fails", "called", "with", "0.6.9"],
        ["0.6.10", "fails", "called", "with", "0.6.10"],
        ["0.7.0", "passes"],
    ]
    assert "\nFirst fails in 0.6.9 (0.6.8 passes); fixed in 0.7.0 (0.6.10 fails).\n" in ran.out


def test_the_line_to_paste_shows_the_fault_again(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bisect", *script("0.6.9"), *sites("0.6.8", "0.6.9"))
    command = ran.out.splitlines()[-1].strip()
    again = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (1, "called with 0.6.9\n")


def test_versions_between_two_that_differ_are_halved(attnfuzz: Attnfuzz) -> None:
    versions = [f"0.6.{number}" for number in range(8)]
    arguments = [*script("0.6.5 0.6.6 0.6.7"), *sites(*versions)]
    ran = attnfuzz("bisect", *arguments)
    assert ran.code == 1
    assert "First fails in 0.6.5 (0.6.4 passes); not fixed in 0.6.7, the newest that could be run." in ran.out
    skipped = sum(row[1:] == ["not", "run"] for row in table(ran))
    assert skipped == 3
    assert "This assumes one change: 3 versions not run, --all runs them." in ran.out
    every = attnfuzz("bisect", *arguments, "--all")
    assert "not run" not in every.out


def test_no_version_fails_is_clean(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bisect", *script(unable="0.6.9"), *sites("0.6.8", "0.6.9"))
    assert ran.code == 0
    assert ran.out.endswith("\nNo version fails: 0.6.8 passes; no other could be run.\n")
    assert table(ran)[1] == ["0.6.9", "can't", "run", "called", "with", "0.6.9"]


def test_versions_are_installed_by_pip_and_one_that_can_not_be_had_is_reported(
    attnfuzz: Attnfuzz, tmp_path: Path
) -> None:
    make_wheel(tmp_path, "0.6.8")
    make_wheel(tmp_path, "0.6.10")
    ran = attnfuzz("bisect", *script("0.6.10"), "--versions", "0.6.8, 0.6.9,0.6.10", *sites("0.7.0"), "--all")
    assert ran.code == 1
    assert "Installing flashinfer-python 0.6.8 (once).\n0.6.8 passes\n" in ran.err
    assert "0.6.9 can't be had: No matching distribution found for flashinfer-python==0.6.9\n" in ran.err
    assert "First fails in 0.6.10 (0.6.8 passes; 0.6.9 could not be judged); fixed in 0.7.0" in ran.out
    assert (tmp_path / "bisect" / "sites").is_dir()


def test_a_range_of_versions_has_those_that_pip_can_install(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    for version in ("0.6.7", "0.6.8", "0.6.9", "0.6.10"):
        make_wheel(tmp_path, version)
    ran = attnfuzz("bisect", *script("0.6.10"), "--versions", "0.6.8..latest, 0.6.8")
    assert [row[0] for row in table(ran)] == ["0.6.8", "0.6.9", "0.6.10"]
    assert "First fails in 0.6.10 (0.6.9 passes)" in ran.out


def test_nothing_that_could_be_run_is_no_answer(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bisect", *script(), "--versions", "0.6.8")
    assert ran.code == 2
    assert ran.out.endswith("\nNo version could be run.\n")


def test_a_case_is_run_by_its_script_for_flashinfer(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    """The FlashInfer of this test lacks the functions that the case calls, which the script says."""
    ran = attnfuzz("bisect", MALFORMED, *sites("0.6.8"))
    assert ran.code == 2
    assert "\n0.6.8 can't run: " in ran.err
    assert ": pip install torch flashinfer-python" in ran.err
    (written,) = (tmp_path / "bisect" / "scripts").iterdir()
    assert written.read_text() == attnfuzz("export", MALFORMED, "--for", "flashinfer").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no versions: name them, like --versions 0.6.8,0.6.9, or where they lie"),
        (["--versions", ""], "'' is not a version"),
        (["--versions", "0.6.8,newest"], "'newest' is not a version: write"),
        (["--versions", "0.6.8..latest"], "cannot list the versions of flashinfer-python: "),
        (["--site", "0.6.8"], "--site '0.6.8' is not VERSION=DIR"),
        (["--site", "=site"], "--site '=site' is not VERSION=DIR"),
        (["--site", "old=site"], "'old' is not a version"),
        (["--site", "0.6.8=site", "--site", "0.6.8=other"], "--site is given twice for 0.6.8"),
        (["--site", "0.6.9=site"], "site has flashinfer-python 0.6.8, not 0.6.9"),
        (["--site", "0.6.8=absent"], "absent is not a folder"),
        (["--site", "0.6.8=empty"], "empty has no flashinfer-python: pip install"),
        (["--versions", "0.6.8", "--package", "../flashinfer"], "'../flashinfer' is not the name of a package"),
        (["--versions", "0.6.8", "--timeout", "soon"], "90s, 10m or 1h30m"),
        (["--versions", "0.6.8", MALFORMED], "give a case or a finding, or else a --script of your own"),
    ],
)
def test_bad_input_is_refused_before_anything_is_run(attnfuzz: Attnfuzz, arguments: list[str], words: str) -> None:
    make_site(Path("site"), "0.6.8")
    Path("empty").mkdir()
    ran = attnfuzz("bisect", *script(), *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err.splitlines()[-1]
    assert not Path("bisect").exists()


def test_neither_a_case_nor_a_script_is_refused(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bisect", "--versions", "0.6.8")
    assert ran.code == 2
    assert "give a case or a finding, or else a --script of your own" in ran.err


def test_a_script_that_is_none_is_refused(attnfuzz: Attnfuzz) -> None:
    Path("broken.py").write_text("import flashinfer\nexit(\n")
    ran = attnfuzz("bisect", "--script", "broken.py", *sites("0.6.8"))
    assert ran.code == 2
    assert "broken.py is not a Python script" in ran.err


def test_a_case_that_can_not_be_exported_is_refused(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    case_file.save(tmp_path / "case.json", decode_case("torch_sdpa", 6, padded=1))
    ran = attnfuzz("bisect", "case.json", *sites("0.6.8"))
    assert ran.code == 2
    assert "case.json can't be exported: FlashInfer has no scaled_dot_product_attention" in ran.err
    assert not Path("bisect").exists()
