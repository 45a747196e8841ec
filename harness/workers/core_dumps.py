"""Core dumps of a GPU, for those who want a fault's address and instruction: CUDA itself tells neither.

They are switched on by naming a folder in the environment variable ATTNFUZZ_CUDA_COREDUMP.
"""

import os
import secrets
from pathlib import Path

VARIABLE = "ATTNFUZZ_CUDA_COREDUMP"

_RUN = secrets.token_hex(4)
"""Of this process and its workers: in a folder that is kept, process ids repeat."""


def settings() -> dict[str, str]:
    """The environment with which a process writes them (cuda-gdb manual, "GPU core dump support"); makes the folder.

    They leave out what memory held. A process goes on after its dump, so that it ends as it does without one.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return {}
    path = Path(folder).resolve()
    path.mkdir(parents=True, exist_ok=True)
    return {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        "CUDA_COREDUMP_GENERATION_FLAGS": "skip_global_memory,skip_shared_memory,skip_local_memory,skip_abort",
        "CUDA_COREDUMP_FILE": str(path / _name("%p")),
    }


def written_by(pid: int) -> str | None:
    """The dump of a process, if dumps are switched on and it has left one."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    path = Path(folder).resolve() / _name(str(pid))
    return str(path) if path.exists() else None


def _name(pid: str) -> str:
    return f"attnfuzz-{_RUN}-{pid}.nvcudmp"
