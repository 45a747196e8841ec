"""Processes that die with their parent, even if it is killed while they are still starting.

Run as `python -m attnfuzz.harness.workers.tethered PARENT MODULE ARGUMENTS`: it asks the system to be killed with the
process PARENT before any slow import, then becomes `python -m MODULE ARGUMENTS`.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1

ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Settings for a process that forks workers, read while torch is imported: one thread, and the driver asleep.

Libraries ask torch for a GPU while they are imported (tvm_ffi does). torch would ask the CUDA driver, which starts a
thread for that and then fails in forks. With this setting it asks NVIDIA's management library instead (docs of
torch.cuda).
"""


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line of `python -m module arguments`, as a process that dies with this one.

    The system reacts to the end of the starting thread, not of the parent (prctl(2)), so it is tethered only if the
    main thread starts it.
    """
    python = [sys.executable, "-m"]
    if threading.current_thread() is not threading.main_thread():
        return [*python, module, *arguments]
    return [*python, "attnfuzz.harness.workers.tethered", str(os.getpid()), module, *arguments]


def die_with(parent: int) -> None:
    """Arrange to be killed when `parent`, which started this process, exits. Exit now if it has exited."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def main() -> None:
    """Become the module, tethered."""
    _, parent, *sys.argv = sys.argv
    die_with(int(parent))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
