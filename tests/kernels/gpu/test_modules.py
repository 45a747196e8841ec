"""FlashInfer's modules are compiled in parallel, in another process, and what came of them is remembered."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fake_specs
import pytest
from fake_specs import module
from forked_python import forked_processes, started_processes

from attnfuzz.kernels.building.library_cache import BuildFailed
from attnfuzz.kernels.gpu import build_record, modules
from attnfuzz.kernels.gpu.build_record import ARCH_LIST, WORKSPACE_BASE, Built, Module
from attnfuzz.kernels.gpu.compilation import first_error

pytestmark = pytest.mark.slow

REFUSED = {
    "refused_by_nvcc": 'mha.cu:12: static assertion failed with "group size"',
    "refused_by_flashinfer": "ValueError: pages of 7 are not supported",
}
MAY_GO_BETTER = {
    "lacking_a_header": "a.cu:3: curand.h: No such file",
    "asked_wrongly": "TypeError: no argument called",
    "killed": "the compiler was killed (exit code -9)",
}
SLOTS = 2


@dataclass(frozen=True)
class Tried:
    """A build: what was `sent` meanwhile, and what was `rejected`."""

    sent: list[str]
    rejected: dict[str, str]

    def named(self) -> set[str]:
        """The modules of which something was reported."""
        return {line.partition(" s: ")[2].split()[0] for line in self.sent[1:]}


@dataclass(frozen=True)
class Builds:
    """Two builds of the same modules in a folder; in between, the library of one was deleted."""

    folder: Path
    wanted: list[Module]
    first: Tried
    again: Tried


def settle_down(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A cache of its own, and compilers that find the modules of these tests."""
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(folder / "cache"))
    monkeypatch.setenv(WORKSPACE_BASE, str(folder))
    monkeypatch.setenv(ARCH_LIST, "9.0a")
    monkeypatch.setenv("MAX_JOBS", str(SLOTS))
    paths = [str(Path(fake_specs.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    """Compilers are forked off a process without FlashInfer, which they import where these tests want it."""
    with forked_processes():
        yield


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settle_down(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builds]:
    """Modules of all kinds, of which one is wanted twice."""
    folder = tmp_path_factory.mktemp("modules")
    good = [module("good", folder / f"good{index}", 5) for index in range(4)]
    others = [module(kind, folder / kind) for kind in ("ahead_of_time", *REFUSED, *MAY_GO_BETTER)]
    wanted = [*others, *good, good[0]]
    with pytest.MonkeyPatch.context() as monkeypatch:
        settle_down(monkeypatch, folder)
        first = tried(wanted)
        (folder / "good3" / "library.so").unlink()
        yield Builds(folder, wanted, first, tried(wanted))


def tried(wanted: list[Module]) -> Tried:
    sent: list[str] = []
    rejected = modules.build(wanted, sent.append)
    return Tried(sent, {name.split()[0]: reason for name, reason in rejected.items()})


def test_modules_are_compiled_and_reported(builds: Builds) -> None:
    assert all((builds.folder / f"good{index}" / "library.so").exists() for index in range(4))
    assert builds.first.sent[0].startswith("compiling 10 modules with nvcc, 2 files at a time")
    assert len(builds.first.sent) == 11
    assert any(line.endswith(" s: good good2 is there") for line in builds.first.sent)


def test_modules_compiled_ahead_of_time_are_not_built(builds: Builds) -> None:
    assert "ahead_of_time" in builds.first.named()
    assert "ahead_of_time" not in builds.first.rejected
    assert not (builds.folder / "ahead_of_time" / "build.ninja").exists()


@pytest.mark.parametrize(("kind", "reason"), {**REFUSED, **MAY_GO_BETTER}.items())
def test_a_module_that_does_not_compile_is_reported_with_the_reason(kind: str, reason: str, builds: Builds) -> None:
    assert builds.first.rejected[kind].startswith(reason)
    (line,) = (line for line in builds.first.sent if f" {kind} " in line)
    assert f"can't be compiled: {reason}" in line


def test_settled_modules_are_not_compiled_again(builds: Builds) -> None:
    assert builds.again.named() == {*MAY_GO_BETTER, "good"}
    assert builds.again.rejected == builds.first.rejected


def test_a_library_that_was_deleted_is_compiled_again(builds: Builds) -> None:
    assert (builds.folder / "good3" / "library.so").exists()
    assert [line.partition(" s: ")[2] for line in builds.again.sent if "good" in line] == ["good good3 is there"]


def test_files_of_all_modules_share_the_slots(builds: Builds) -> None:
    running = most = 0
    for line in (builds.folder / "log").read_text().split():
        running += 1 if line == "begin" else -1
        most = max(most, running)
    assert running == 0
    assert most <= SLOTS


def test_flashinfer_is_asked_in_another_process_only(builds: Builds) -> None:
    assert (builds.folder / "good0" / "library.so").exists()
    assert fake_specs.MADE == []


def test_a_stuck_compiler_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    (came,) = modules.compile_all([module("stuck", tmp_path / "one")], archs="9.0a", limit=0.0)
    assert came.built.reason == "no file of it was compiled for 0 s"
    pid = tmp_path / "one" / "pid"
    # It may have been killed before what it started began.
    assert not (pid.exists() and pid.read_text()) or not runs(int(pid.read_text()))


def runs(pid: int) -> bool:
    """Whether a process runs, and is neither gone nor waiting for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_compiler_that_can_not_begin_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        started_processes(),
        pytest.raises(BuildFailed, match=r"compiling FlashInfer's modules failed:\n\(no output\)"),
    ):
        list(modules.compile_all([module("good", tmp_path / "one")], archs="9.0a"))


def test_nothing_wanted_is_nothing_done(tmp_path: Path) -> None:
    assert tried([]) == Tried([], {})
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("output", "reason", "lasting"),
    [
        (
            '[1/2] nvcc a.cu\n/x/a.cu(7): error: static assertion failed with "no"\n/x/a.cu(9): error: more',
            'a.cu:7: static assertion failed with "no"',
            True,
        ),
        ("/x/a.cuh:7:3: error: static assertion failed: no", "a.cuh:7: static assertion failed: no", True),
        ("/x/a.cu:3:10: fatal error: curand.h: No such file", "a.cu:3: curand.h: No such file", False),
        ("FAILED: a.o\n/bin/sh: 1: nvcc: not found", "/bin/sh: 1: nvcc: not found", False),
        (
            "FAILED: a.o\nnvcc error   : 'cicc' died due to signal 9 (Kill signal)",
            "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
            False,
        ),
        ("ninja: stopped", "ninja: stopped", False),
        ("", "no output", False),
    ],
    ids=["nvcc", "g++", "a header", "no compiler", "killed", "something else", "nothing"],
)
def test_the_first_error_of_a_compiler_is_its_reason(output: str, reason: str, *, lasting: bool) -> None:
    assert first_error(output) == (reason, lasting)


def test_another_cache_of_flashinfer_is_another_machine(tmp_path: Path) -> None:
    assert Built(library=str(tmp_path), base=str(tmp_path)).settled
    assert not Built(library=str(tmp_path), base="/elsewhere").settled
    assert not Built(reason="no", lasting=True, base="/elsewhere").settled


def test_a_damaged_record_is_written_anew(tmp_path: Path) -> None:
    built = Built(library=str(tmp_path), base=str(tmp_path))
    build_record.add("9.0a", {"one": built})
    (path,) = (tmp_path / "cache").iterdir()
    path.write_text("{")
    assert build_record.read("9.0a") == {}
    build_record.add("9.0a", {"two": built})
    assert build_record.read("9.0a") == {"two": built}


def test_flashinfers_letters_make_no_other_architecture(tmp_path: Path) -> None:
    built = Built(library=str(tmp_path), base=str(tmp_path))
    build_record.add("9.0a", {"one": built})
    assert build_record.read("9.0") == {"one": built}
    assert build_record.read("10.0") == {}


def test_a_cache_that_can_not_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildFailed, match="set ATTNFUZZ_CACHE"):
        build_record.add("9.0a", {"one": Built(base=str(tmp_path))})
