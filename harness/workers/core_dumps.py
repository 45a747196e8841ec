"""Core dumps of a GPU, for those who want a fault's address and instruction: CUDA itself tells neither.

They are switched on by naming a folder in the environment variable ATTNFUZZ_CUDA_COREDUMP.
"""

import os
import secrets
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
