"""`attnfuzz build`: what is compiled, for what, and what is printed of it."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fake_nvml
import pytest
from command_line import Attnfuzz
from refusals import refused

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.cli.flashinfer import build as command
from attnfuzz.kernels.building.library_cache import cache_folder
from attnfuzz.kernels.cuda import nvcc, toolkit
from attnfuzz.kernels.gpu import build_record, module_archive, modules
from attnfuzz.kernels.gpu.build_record import Built, Module
from attnfuzz.kernels.gpu.compilation import BuildLine
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.native import build

MIB = 1 << 20


@dataclass
class Compiled:
    """What was asked of compilers that do nothing."""

    sources: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    archs: set[str] = field(default_factory=set)
    parallel: int | None = None


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiled:
    """Compilers that compile the first module, reject the second, and have all others."""
    asked = Compiled()
    library = tmp_path / "library.so"
    library.write_bytes(bytes(3 * MIB))

    def own(files: Sequence[Path], *, archs: Sequence[str], progress: Callable[[str], None]) -> Path:
        del progress
        asked.sources += [file.name for file in files]
        asked.archs |= set(archs)
        return library

    def all_modules(wanted: Sequence[Module], *, archs: str, parallel: int | None) -> Iterator[BuildLine]:
        asked.modules += [module.name for module in wanted]
        asked.archs.add(archs)
        asked.parallel = parallel
        base = build_record.workspace_base()
        first, *others = wanted
        if others:
            second, *others = others
            yield BuildLine(name=second.name, built=Built(reason="mha.cu:12: static assertion failed", base=base))
        yield BuildLine(name=first.name, built=Built(library=str(library), seconds=41.0, base=base))
        for each in others:
            yield BuildLine(name=each.name, built=Built(library=str(library), base=base))

    def native_kernels(_: Callable[[str], None]) -> Path:
        kernels = cache_folder() / "attnfuzz_native-0123.so"
        kernels.parent.mkdir(parents=True, exist_ok=True)
        kernels.write_bytes(bytes(MIB))
        return kernels

    monkeypatch.setattr(nvcc, "build", own)
    monkeypatch.setattr(build, "compiled", native_kernels)
    monkeypatch.setenv("ATTNFUZZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(modules, "compile_all", all_modules)
    monkeypatch.setattr(toolkit, "missing", lambda: None)
    monkeypatch.delenv(build_record.ARCH_LIST, raising=False)
    fake_nvml.install(monkeypatch, [fake_nvml.H200])
    return asked


def names_of(backend: str) -> list[str]:
    found = resolve(backend)
    assert isinstance(found, GpuBackend)
    return [module.name for module in found.modules()]


def test_everything_for_the_visible_gpu_is_compiled(attnfuzz: Attnfuzz, compiled: Compiled) -> None:
    assert attnfuzz("build").code == 0
    assert set(names_of("hopper:trtllm_mha")) | set(names_of("fa2_paged")) <= set(compiled.modules)
    assert not set(names_of("blackwell:trtllm_mha")) & set(compiled.modules)
    assert {"guards.cu", "fixup.cu"} <= set(compiled.sources)
    assert len(compiled.modules) == len(set(compiled.modules))
    assert compiled.archs == {"9.0"}


def test_a_quick_set_takes_minutes_and_covers_most_pairs(attnfuzz: Attnfuzz, compiled: Compiled) -> None:
    ran = attnfuzz("build", "--quick")
    assert ran.code == 0
    words = re.search(r"(\d+) modules of (\d+), for (\d+) of (\d+) pairs of compile-time features", ran.err)
    assert words is not None
    modules, every, covered, pairs = map(int, words.groups())
    assert modules == len(compiled.modules) < every
    assert pairs / 2 < covered < pairs
    assert "FA2 prefill bfloat16, head dim 64" in compiled.modules


def test_minutes_on_these_cores_bound_the_choice_and_the_pairs_left_out_are_named(
    attnfuzz: Attnfuzz, compiled: Compiled
) -> None:
    ran = attnfuzz("build", "--backend", "fa3_paged", "--minutes", "1", "--jobs", "16", "--json", "answer.json")
    assert ran.code == 0
    assert compiled.modules == ["FA3 prefill bfloat16, head dim 64"]
    assert "1 module of 2, for " in ran.err
    assert "Left out: " in ran.err
    left = json.loads(Path("answer.json").read_text())["left"]
    assert ["queries bfloat16", "window True"] in left
    compiled.modules.clear()
    ran = attnfuzz("build", "--backend", "fa3_paged", "--minutes", "3", "--jobs", "16")
    assert compiled.modules == names_of("fa3_paged")
    assert "Left out" not in ran.err


def test_modules_that_include_a_changed_file_are_compiled_again(
    attnfuzz: Attnfuzz, compiled: Compiled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(build_record.WORKSPACE_BASE, str(tmp_path))
    library = tmp_path / "there.so"
    library.write_bytes(bytes(MIB))
    ready = Built(library=str(library), base=str(tmp_path))
    build_record.add("9.0", dict.fromkeys(names_of("fa3_paged"), ready))
    window = [name for name in names_of("fa3_paged") if "window" in name]

    def touching(modules: Sequence[Module], files: Sequence[Path], archs: str) -> tuple[Module, ...]:
        assert files == (Path("mainloop.cuh"),)
        assert archs == "9.0"
        return tuple(module for module in modules if module.name in window)

    monkeypatch.setattr(command, "modules_including", touching)
    archive = str(tmp_path / "modules.tar")
    ran = attnfuzz("build", "--backend", "fa3_paged", "--for", "mainloop.cuh", "--archive", archive)
    assert ran.code == 0
    assert compiled.modules == window


def test_a_time_and_the_quick_set_are_one_choice(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("build", "--quick", "--minutes", "2"), "--minutes")
    refused(attnfuzz("build", "--minutes", "0"), "--minutes")


def test_named_backends_are_compiled_and_no_others(attnfuzz: Attnfuzz, compiled: Compiled) -> None:
    assert attnfuzz("build", "--backend", "trtllm_mha", "--backend", "fa2_paged", "--jobs", "3").code == 0
    assert compiled.modules == [*names_of("hopper:trtllm_mha"), *names_of("fa2_paged")]
    assert compiled.parallel == 3


def test_an_architecture_can_be_named_without_a_gpu(
    attnfuzz: Attnfuzz, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch)
    assert attnfuzz("build", "--arch", "10.0a").code == 0
    assert set(names_of("blackwell:trtllm_mha")) <= set(compiled.modules)
    assert not set(names_of("fa3_paged")) & set(compiled.modules)
    assert compiled.archs == {"10.0", "10.0a"}


def test_a_name_is_that_of_the_architectures_that_are_named(
    attnfuzz: Attnfuzz, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch)
    assert attnfuzz("build", "--arch", "10.0a", "--backend", "trtllm_mha", "--backend", "fa2_paged").code == 0
    assert compiled.modules == [*names_of("blackwell:trtllm_mha"), *names_of("fa2_paged")]


def test_each_module_is_reported_with_its_time_and_size_or_the_reason(attnfuzz: Attnfuzz, compiled: Compiled) -> None:
    ran = attnfuzz("build", "--backend", "fa2_paged")
    assert ran.code == 0
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    first, second, third = compiled.modules[:3]
    assert f"{first} 41 s 3.0 MiB" in lines
    assert lines[lines.index(second) + 1] == "mha.cu:12: static assertion failed"
    assert f"{third} there 3.0 MiB" in lines
    assert "1 can't be compiled." in ran.out.splitlines()[-1]
    assert max(map(len, ran.out.splitlines())) <= 80


def test_without_a_terminal_each_module_is_a_line(attnfuzz: Attnfuzz, compiled: Compiled) -> None:
    lines = attnfuzz("build", "--backend", "fa2_paged").err.splitlines()
    first, second, third = compiled.modules[:3]
    number = len(compiled.modules)
    assert lines[:3] == [
        f"1 of {number}: {second}, mha.cu:12: static assertion failed",
        f"2 of {number}: {first}, 41 s",
        f"3 of {number}: {third}, 0 s",
    ]


def test_modules_in_an_archive_are_not_compiled(
    attnfuzz: Attnfuzz, compiled: Compiled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(build_record.WORKSPACE_BASE, str(tmp_path))
    names = names_of("fa2_paged")
    library = tmp_path / "there.so"
    library.write_bytes(bytes(MIB))
    build_record.add("9.0", {names[2]: Built(library=str(library), base=str(tmp_path))})
    archive = tmp_path / "modules.tar"
    assert attnfuzz("build", "--backend", "fa2_paged", "--archive", str(archive)).code == 0
    assert compiled.modules == [name for name in names if name != names[2]]
    library.unlink()
    (tmp_path / "cache").rename(tmp_path / "another")
    compiled.modules.clear()
    module_archive.take(archive, "9.0")
    assert library.exists()
    assert (tmp_path / "cache" / "attnfuzz_native-0123.so").exists()
    assert attnfuzz("build", "--backend", "fa2_paged", "--archive", str(archive)).code == 0
    assert names[2] not in compiled.modules


@pytest.mark.usefixtures("compiled")
def test_an_archive_keeps_the_modules_of_a_build_that_is_cut_off_and_those_of_others(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(build_record.WORKSPACE_BASE, str(tmp_path))
    archive, library = tmp_path / "modules.tar", tmp_path / "made.so"
    library.write_bytes(bytes(MIB))
    decode, *others = names_of("batch_decode")

    def one_module(wanted: Sequence[Module], *, archs: str, parallel: int | None) -> Iterator[BuildLine]:
        del parallel
        built = Built(library=str(library), base=str(tmp_path))
        build_record.add(archs, {wanted[0].name: built})
        yield BuildLine(name=wanted[0].name, built=built)
        raise KeyboardInterrupt

    monkeypatch.setattr(modules, "compile_all", one_module)
    for backend in ("batch_decode", "fa2_paged"):
        attnfuzz("build", "--backend", backend, "--archive", str(archive))
    (tmp_path / "cache").rename(tmp_path / "another")
    library.unlink()
    taken = module_archive.take(archive, "9.0")
    assert taken.names == (decode, names_of("fa2_paged")[0])
    assert not set(others) & set(taken.names)
    assert library.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no GPU is visible to compile for: name an architecture, like --arch 9.0a"),
        (["--arch", "nine"], "--arch nine"),
        (["--arch", "9.0a", "--backend", "torch_sdpa"], "torch_sdpa has no counterpart on cuda"),
        (["--arch", "9.0a", "--backend", "xqaa"], "unknown backend 'xqaa'"),
        (["--arch", "12.3"], "no backend runs on SM 12.3: give --arch one of 8.0, 8.9, 9.0, 10.0, 10.3, 12.0"),
        (["--arch", "8.0", "--backend", "xqa"], "xqa runs on SM 9.0, not on 8.0: leave it out"),
    ],
)
def test_an_impossible_target_of_build_is_reported_in_one_line(
    arguments: list[str], words: str, attnfuzz: Attnfuzz, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch)
    ran = attnfuzz("build", *arguments)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert words in ran.err.splitlines()[-1]
    assert compiled.modules == []


def test_a_missing_compiler_is_sent_before_anything_is_done(
    attnfuzz: Attnfuzz, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit, "missing", lambda: "no nvcc on PATH: install NVIDIA's CUDA toolkit")
    ran = attnfuzz("build")
    assert ran.code == 2
    assert "no nvcc on PATH" in ran.err
    assert compiled.sources == compiled.modules == []
