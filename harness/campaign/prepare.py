"""Preparation before jobs start: checking backends, compiling, and checking the memory."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import CannotRun, Runner
from attnfuzz.harness.sandbox.teams import team_of
from attnfuzz.harness.verdict.wording import count
from attnfuzz.harness.workers import gpu_core
from attnfuzz.kernels.cuda.visible import visible
from attnfuzz.kernels.interface.toolchain import toolchains
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError


def lacking(backends: Sequence[str]) -> dict[str, str]:
    """Return those of `backends` that can't run here, by name, with the reason. Raises errors of resolving."""
    found = ((name, resolve(name).missing()) for name in backends)
    return {name: reason for name, reason in found if reason is not None}


def prepare(backends: Sequence[str], progress: Callable[[str], None]) -> None:
    """Check that `backends` can run here, and compile their kernels visibly, instead of in each job.

    Raises CannotRun, and errors of resolving and compiling.
    """
    resolved = {name: resolve(name) for name in backends}
    for name, why_not in lacking(backends).items():
        raise CannotRun(f"{name} can't run here: {why_not}")
    if any(one.capability.device is Device.CUDA for one in resolved.values()):
        # Create the folder of core dumps, if one is named, because an error in a job would not be visible.
        gpu_core.settings()
    # Compile for all backends at once; the rest is quick.
    for toolchain in toolchains():
        for line in toolchain.compiling(resolved.values()):
            progress(line)
    for backend in resolved.values():
        backend.prepare(progress)
    for name in resolved:
        engine = engine_of(name)
        if engine is not None and engine.untried(name):
            # A job that fails to start workers would leave a campaign behind.
            with Runner([name]) as runner:
                runner.start(name)


MOST_JOBS_PER_GPU = 8
"""The driver creates the contexts of a GPU's processes almost one after the other: with more jobs, fewer failures are
explained in the same time (docs/explanation/performance.md, Deaths).
"""


def default_jobs(most: int, backends: Sequence[str]) -> int:
    """Return how many of `most` jobs should run `backends` here, so that GPUs can serve them.

    Raises errors of resolving.
    """
    if not any(team_of(name).device is Device.CUDA for name in backends):
        return most
    return min(most, MOST_JOBS_PER_GPU * max(1, len(visible())))


GIB = 1 << 30

BYTES_OF_JOB = GIB // 4
"""Memory of a job process itself.

Like all following numbers, measured with campaigns of 15 s on Linux with torch 2.13: the largest sum of Pss in
/proc/PID/smaps_rollup over a process and its children. A job had 185 MiB; with its nursery and workers on the CPU it
had 500 MiB for trtllm_mha, 503 MiB for torch_sdpa and 733 MiB for trtllm_mla; of four jobs, each had 537 MiB.
"""

BYTES_OF_TEAM = {Device.CPU: GIB // 2, Device.CUDA: 3 * GIB // 2}
"""Memory of a nursery, its worker at work and its spares.

On the CPU: 65 + 56 MiB and 150 to 430 MiB for the worker at work. On a GPU (H100, torch 2.11) a process with torch, a
context and cuBLAS has 441 MiB of its own, and there are three workers.
"""

_CGROUPS = Path("/sys/fs/cgroup")


class NoRoom(UserError):
    """More jobs than fit into memory. The message has the numbers and the remedy."""


def check_room(jobs: int, backends: Sequence[str], *, instead: str = "--jobs {most}") -> None:
    """Raise NoRoom if `jobs` processes that run `backends` need more memory than there is.

    `instead` is the option for the largest number that fits.
    """
    each = BYTES_OF_JOB + sum(BYTES_OF_TEAM[team.device] for team in dict.fromkeys(map(team_of, backends)))
    free = available()
    if jobs * each <= free:
        return
    most = free // each
    advice = f"give {instead.format(most=most)}" if most else "free some memory"
    raise NoRoom(
        f"{count(jobs, 'job')} need{'s' if jobs == 1 else ''} about {jobs * each / GIB:,.1f} GiB of memory, and "
        f"{free / GIB:,.1f} GiB are available: {advice}"
    )


def available(proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> int:
    """Return the memory in bytes for new processes on this machine, within this process's control groups."""
    return max(0, min((_on_the_machine(proc), *_in_groups(proc, cgroups))))


def _on_the_machine(proc: Path) -> int:
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    return next(int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:")


def _in_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield the remaining limit of each control group of this process, of either version (cgroups(7))."""
    try:
        groups = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root = cgroups / controllers
            yield from _left(root, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(root: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    group = root / path.lstrip("/")
    # A container may have a path that it can't see: limits of its parents remain.
    for folder in (group, *group.parents):
        if folder == root.parent:
            return
        try:
            most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
            counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if most != "max":
            # Inactive pages of the file cache count as used, and are reclaimed on demand.
            yield int(most) - used + int(counts.get(reclaimable, 0))
