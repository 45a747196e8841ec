"""GPU core dumps, which record the address and instruction of a fault; CUDA itself reports neither.

They are enabled by a folder in the environment variable ATTNFUZZ_CUDA_COREDUMP. CUDA-GDB prints the failing instruction
and the registers of one thread of its warp, which stops a few instructions later. The address is taken from a register
pair, if no instruction in between may have changed it. The output format is that of CUDA 13.0 on an H200.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnfuzz.kernels.building.bounded_command import TooSlow, output_of

VARIABLE = "ATTNFUZZ_CUDA_COREDUMP"
_FILE = "CUDA_COREDUMP_FILE"

_RUN = secrets.token_hex(4)
"""Distinguishes runs, because process ids repeat in a folder that is kept."""


def settings() -> dict[str, str]:
    """Return the environment that makes a process write dumps (cuda-gdb manual, "GPU core dump support").

    Creates the folder. Dumps leave out memory. A process continues after its dump and reports its state itself, because
    CUDA's own abort reports nothing.
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
    """Return the dump of a process, or None if there is none or dumps are disabled."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    path = Path(folder).resolve() / _name(str(pid))
    return str(path) if path.exists() else None


def left_here() -> bool:
    """Return whether this process, a worker started with `settings`, has left a dump."""
    pattern = os.environ.get(_FILE)
    return pattern is not None and Path(pattern.replace("%p", str(os.getpid()))).exists()


def _name(pid: str) -> str:
    return f"attnfuzz-{_RUN}-{pid}.nvcudmp"


_DEBUGGER = "cuda-gdb"

_SECONDS = 60.0
"""Time limit of CUDA-GDB, which takes a second, or more if many modules are loaded."""

_BETWEEN = 16
"""Number of instructions to examine, starting with the failing one."""

_EXCEPTION = re.compile(r"^CUDA Exception: (?P<text>.+)$", re.MULTILINE)
_FRAME = re.compile(r"^#0\s+(?:0x[0-9a-fA-F]+ in )?(?P<kernel>.+?)\s*(?:\(\))?$", re.MULTILINE)
_FOCUS = re.compile(r"focus set to CUDA kernel .*?block (?P<block>\([\d,]+\)), thread (?P<thread>\([\d,]+\))")
_LINE = re.compile(r"^(?P<mark>[=*]>)?\s*0x(?P<at>[0-9a-f]+)(?: <.*>)?:\s+(?:@!?U?P\w+ )?(?P<text>[A-Z]\S*(?: .*)?)$")
_REGISTER = re.compile(r"^(?P<name>pc|R\d+)\s+0x(?P<value>[0-9a-f]+)\s", re.MULTILINE)
_POINTER = re.compile(r"\[R(?P<pair>\d+)\.64(?P<offset>[+-]0x[0-9a-f]+)?\]")
_RESULT = re.compile(r"^\S+ R(?P<first>\d+)\b")

_WIDEST = 4
"""Maximum number of registers that one instruction writes."""


@dataclass(frozen=True)
class Core:
    """The fault in a core dump: `words` are a clause. `address` is that of one thread of the warp, None if unknown.

    `write` is True if the instruction writes memory.
    """

    words: str
    address: int | None = None
    write: bool = False

    @property
    def misaligned(self) -> bool:
        """Whether an address was misaligned."""
        return "Misaligned Address" in self.words

    @property
    def illegal(self) -> bool:
        """Whether an address was illegal."""
        return "Illegal Address" in self.words or "MMU Fault" in self.words


def command(core: Path) -> list[str]:
    """Return the CUDA-GDB command that prints a core dump's kernel, instruction and registers."""
    asked = ("set style enabled off", f"target cudacore {core}", f"x/{_BETWEEN}i $errorpc", "info registers")
    return [_DEBUGGER, "-nx", "-batch", *(part for each in asked for part in ("-ex", each))]


def read(core: str) -> Core:
    """Read a core dump. Without CUDA-GDB, the words say how to do it."""
    if shutil.which(_DEBUGGER) is None:
        return Core(f"{_DEBUGGER}, of the CUDA toolkit, is not on the PATH to read it: target cudacore {core}")
    try:
        return understood(output_of(command(Path(core)), seconds=_SECONDS, always=True) or "")
    except TooSlow:
        return Core(f"{_DEBUGGER} did not read it within {_SECONDS:g} s: target cudacore {core}")


def understood(output: str) -> Core:
    """Parse CUDA-GDB's output."""
    exception = _EXCEPTION.search(output)
    if exception is None:
        lines = (line.strip() for line in output.splitlines())
        return Core(f"it can't be read: {next(filter(None, lines), 'nothing was printed')}")
    said = [exception["text"].strip()]
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
    """Yield the instructions from the failing one on, each with its address."""
    for line in output.splitlines():
        if found := _LINE.match(line.rstrip()):
            yield int(found["at"], 16), found["text"].strip()


def _address(code: list[tuple[int, str]], output: str) -> int | None:
    registers = {found["name"]: int(found["value"], 16) for found in _REGISTER.finditer(output)}
    pointer = _POINTER.search(code[0][1])
    if pointer is None or "pc" not in registers:
        return None
    low = int(pointer["pair"])
    # The failing instruction has written nothing.
    passed = [text for at, text in code[1:] if at < registers["pc"]]
    if any(_writes(text, low) for text in passed) or {f"R{low}", f"R{low + 1}"} - registers.keys():
        return None
    return (registers[f"R{low + 1}"] << 32 | registers[f"R{low}"]) + int(pointer["offset"] or "0", 16)


def _writes(instruction: str, low: int) -> bool:
    """Return whether an instruction may write one of the two registers from `low` on. Its result comes first."""
    result = _RESULT.match(instruction)
    return result is not None and int(result["first"]) <= low + 1 and low < int(result["first"]) + _WIDEST
