"""Core dumps of a GPU, which have the address and the instruction of a fault: CUDA itself reports neither.

They are switched on by naming a folder in the environment variable ATTNFUZZ_CUDA_COREDUMP. CUDA-GDB prints the
instruction that failed and the registers of one thread of its warp, which stops a few instructions later. An address is
taken from them where a register pair holds it, and nothing in between may have changed that pair. What it prints has
been seen of CUDA 13.0 on an H200.
"""

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "ATTNFUZZ_CUDA_COREDUMP"
_FILE = "CUDA_COREDUMP_FILE"

_RUN = secrets.token_hex(4)
"""Of this process and its workers: in a folder that is kept, process ids repeat."""


def settings() -> dict[str, str]:
    """The environment with which a process writes them (cuda-gdb manual, "GPU core dump support"); makes the folder.

    They leave out what memory held. A process goes on after its dump, and says itself what it was at: CUDA's own end of
    it tells nothing.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return {}
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True)
    return {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        "CUDA_COREDUMP_GENERATION_FLAGS": "skip_global_memory,skip_shared_memory,skip_local_memory,skip_abort",
        _FILE: str(path / _name("%p")),
    }


def written_by(pid: int) -> str | None:
    """The dump of a process, if dumps are switched on and it has left one."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    path = Path(folder).resolve() / _name(str(pid))
    return str(path) if path.exists() else None


def left_here() -> bool:
    """Whether this process, a worker that began with `settings`, has left one."""
    pattern = os.environ.get(_FILE)
    return pattern is not None and Path(pattern.replace("%p", str(os.getpid()))).exists()


def _name(pid: str) -> str:
    return f"attnfuzz-{_RUN}-{pid}.nvcudmp"


_DEBUGGER = "cuda-gdb"

_SECONDS = 60.0
"""It takes a second, more where many modules were loaded."""

_BETWEEN = 16
"""Instructions to look at from the one that failed on."""

_EXCEPTION = re.compile(r"^CUDA Exception: (?P<what>.+)$", re.MULTILINE)
_FRAME = re.compile(r"^#0\s+(?:0x[0-9a-fA-F]+ in )?(?P<kernel>.+?)\s*(?:\(\))?$", re.MULTILINE)
_FOCUS = re.compile(r"focus set to CUDA kernel .*?block (?P<block>\([\d,]+\)), thread (?P<thread>\([\d,]+\))")
_LINE = re.compile(r"^(?P<mark>[=*]>)?\s*0x(?P<at>[0-9a-f]+)(?: <.*>)?:\s+(?:@!?U?P\w+ )?(?P<text>[A-Z]\S*(?: .*)?)$")
_REGISTER = re.compile(r"^(?P<name>pc|R\d+)\s+0x(?P<value>[0-9a-f]+)\s", re.MULTILINE)
_POINTER = re.compile(r"\[R(?P<pair>\d+)\.64(?P<offset>[+-]0x[0-9a-f]+)?\]")
_RESULT = re.compile(r"^\S+ R(?P<first>\d+)\b")

_WIDEST = 4
"""Registers that one instruction writes, at most."""


@dataclass(frozen=True)
class Core:
    """What a core dump tells: `words` are a clause. `address` is that of one thread of the warp, None if unknown.

    `write` says whether the instruction writes memory.
    """

    words: str
    address: int | None = None
    write: bool = False

    @property
    def misaligned(self) -> bool:
        """Whether that is what was wrong with an address."""
        return "Misaligned Address" in self.words

    @property
    def illegal(self) -> bool:
        """Whether an address was not to be used."""
        return "Illegal Address" in self.words or "MMU Fault" in self.words


def command(core: Path) -> list[str]:
    """Have CUDA-GDB say where the kernel of a core dump stopped, at which instruction, and with which registers."""
    asked = ("set style enabled off", f"target cudacore {core}", f"x/{_BETWEEN}i $errorpc", "info registers")
    return [_DEBUGGER, "-nx", "-batch", *(part for each in asked for part in ("-ex", each))]


def read(core: str) -> Core:
    """What a core dump tells; where there is no CUDA-GDB, how to get it."""
    if shutil.which(_DEBUGGER) is None:
        return Core(f"{_DEBUGGER}, of the CUDA toolkit, is not on the PATH to read it: target cudacore {core}")
    try:
        done = subprocess.run(
            command(Path(core)), capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Core(f"{_DEBUGGER} did not read it within {_SECONDS:g} s: target cudacore {core}")
    return understood(done.stdout + done.stderr)


def understood(output: str) -> Core:
    """What CUDA-GDB printed."""
    what = _EXCEPTION.search(output)
    if what is None:
        lines = (line.strip() for line in output.splitlines())
        return Core(f"it can't be read: {next(filter(None, lines), 'nothing was printed')}")
    said = [what["what"].strip()]
    if frame := _FRAME.search(output):
        said.append(f"in {frame['kernel']}")
    if focus := _FOCUS.search(output):
        said.append(f"in the warp of thread {focus['thread']} in block {focus['block']}")
    code = list(_code(output))
    if not code:
        return Core(", ".join(said))
    failed = code[0][1]
    said.append(f"at {failed}")
    return Core(", ".join(said), _address(code, output), failed.startswith(("ST", "RED", "ATOM")))


def _code(output: str) -> Iterator[tuple[int, str]]:
    """The instructions from the one that failed on, each with its address."""
    for line in output.splitlines():
        if found := _LINE.match(line.rstrip()):
            yield int(found["at"], 16), found["text"].strip()


def _address(code: list[tuple[int, str]], output: str) -> int | None:
    registers = {found["name"]: int(found["value"], 16) for found in _REGISTER.finditer(output)}
    pointer = _POINTER.search(code[0][1])
    if pointer is None or "pc" not in registers:
        return None
    low = int(pointer["pair"])
    # What failed has written nothing.
    passed = [text for at, text in code[1:] if at < registers["pc"]]
    if any(_writes(text, low) for text in passed) or {f"R{low}", f"R{low + 1}"} - registers.keys():
        return None
    return (registers[f"R{low + 1}"] << 32 | registers[f"R{low}"]) + int(pointer["offset"] or "0", 16)


def _writes(instruction: str, low: int) -> bool:
    """Whether an instruction may write one of the pair of registers from `low` on: its result comes first."""
    result = _RESULT.match(instruction)
    return result is not None and int(result["first"]) <= low + 1 and low < int(result["first"]) + _WIDEST
