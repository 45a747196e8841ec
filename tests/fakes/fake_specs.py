"""Stands for compilation units of FlashInfer: files whose compiler only records when it begins and ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attnfuzz.kernels.gpu.build_record import Module

MADE: list[str] = []
"""The folders for which specs were made in this process."""

_NINJA = """
rule compile
  command = echo begin >> {log}; {python} -S -c pass; echo end >> {log}
rule link
  command = {link}
{objects}
build library.so: link {names}
"""


@dataclass
class Spec:
    """A library of `sources`, linked by the command `link`."""

    folder: Path
    sources: Sequence[str]
    link: str = "touch library.so"
    is_aot: bool = False

    def get_library_path(self) -> Path:
        return self.folder / "library.so"

    def build(self, *, verbose: bool, need_lock: bool) -> None:
        assert not verbose
        assert need_lock
        self.folder.mkdir(parents=True, exist_ok=True)
        names = [f"{name}.o" for name in self.sources]
        objects = "\n".join(f"build {name}: compile" for name in names)
        text = _NINJA.format(
            log=self.folder.parent / "log",
            python=sys.executable,
            link=self.link,
            objects=objects,
            names=" ".join(names),
        )
        (self.folder / "build.ninja").write_text(text)
        # From the path, as FlashInfer does.
        command = ["ninja", "-v"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Ninja build failed. Ninja output:\n{done.stdout}")


def good(folder: str, files: int = 3) -> Spec:
    MADE.append(folder)
    return Spec(Path(folder), [f"file{index}" for index in range(files)])


def ahead_of_time(folder: str) -> Spec:
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "library.so").touch()
    return Spec(Path(folder), [], is_aot=True)


def refused_by_nvcc(folder: str) -> Spec:
    line = '/src/mha.cu(12): error: static assertion failed with \\"group size\\"'
    return Spec(Path(folder), [], link=f'echo "{line}"; exit 1')


def lacking_a_header(folder: str) -> Spec:
    return Spec(Path(folder), [], link='echo "/src/a.cu:3:10: fatal error: curand.h: No such file"; exit 1')


def refused_by_flashinfer(folder: str) -> Spec:
    raise ValueError(f"pages of 7 are not supported\nin {folder}")


def asked_wrongly(folder: str) -> Spec:
    raise TypeError(f"no argument called {folder}")


def killed(folder: str) -> Spec:
    class Killed(Spec):
        def build(self, *, verbose: bool, need_lock: bool) -> None:
            del verbose, need_lock
            os.kill(os.getpid(), signal.SIGKILL)

    return Killed(Path(folder), [])


def stuck(folder: str) -> Spec:
    """Waits forever, in a compiler of its own whose process is written down."""

    class Stuck(Spec):
        def build(self, *, verbose: bool, need_lock: bool) -> None:
            del verbose, need_lock
            self.folder.mkdir(parents=True, exist_ok=True)
            wait = "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); signal.pause()"
            subprocess.run([sys.executable, "-c", wait, str(self.folder / "pid")], check=False)

    return Stuck(Path(folder), [])


def module(kind: str, folder: Path, *arguments: int) -> Module:
    """A module of one of these kinds, built in `folder`."""
    return Module(f"{kind} {folder.name}", partial(globals()[kind], str(folder), *arguments))
