"""Jobs are started only if the memory is enough for them."""

from pathlib import Path

import pytest

from attnfuzz.harness.campaign import prepare
from attnfuzz.harness.campaign.prepare import GIB, MOST_JOBS_PER_GPU, NoRoom, available, check_room, default_jobs

MEMINFO = "MemTotal:       33554432 kB\nMemFree:  1024 kB\nMemAvailable:   16777216 kB\n"


def machine(folder: Path, groups: str, **files: str) -> tuple[Path, Path]:
    """A machine with 16 GiB to give, whose process is in these control groups; files are PATH=CONTENT."""
    proc, cgroups = folder / "proc", folder / "cgroups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self/cgroup").write_text(groups)
    cgroups.mkdir()
    for name, content in files.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return proc, cgroups


def version_2(group: str, limit: str, used: int) -> dict[str, str]:
    return {
        f"{group}/memory.max": limit,
        f"{group}/memory.current": str(used),
        f"{group}/memory.stat": f"anon 1\ninactive_file {GIB}\n",
    }


def test_memory_is_the_available_memory_of_the_machine(tmp_path: Path) -> None:
    assert available(*machine(tmp_path, "0::/\n")) == 16 * GIB


def test_memory_of_a_control_group_is_its_unused_limit_and_reclaimable_files(tmp_path: Path) -> None:
    found = machine(tmp_path, "0::/a/b\n", **version_2("a/b", "max", 3 * GIB), **version_2("a", f"{8 * GIB}", 5 * GIB))
    assert available(*found) == 4 * GIB


def test_a_control_group_of_version_1_counts_too(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": str(4 * GIB),
        "memory/job/memory.usage_in_bytes": str(3 * GIB),
        "memory/job/memory.stat": "total_inactive_file 0\n",
    }
    assert available(*machine(tmp_path, "9:name=systemd:/\n4:memory:/job\n0::/\n", **files)) == GIB


def test_a_group_that_a_container_does_not_see_is_left_to_those_above(tmp_path: Path) -> None:
    assert available(*machine(tmp_path, "0::/elsewhere/x\n", **version_2(".", f"{2 * GIB}", GIB))) == 2 * GIB


@pytest.mark.parametrize(
    ("jobs", "free", "says"),
    [
        (1_000_000, 16 * GIB, "1,000,000 jobs need about 750,000.0 GiB of memory, and 16.0 GiB are available: "),
        (22, 16 * GIB, "22 jobs need about 16.5 GiB of memory, and 16.0 GiB are available: give --jobs 21"),
        (1, GIB // 2, "1 job needs about 0.8 GiB of memory, and 0.5 GiB are available: free some memory"),
    ],
)
def test_more_jobs_than_fit_are_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, jobs: int, free: int, says: str
) -> None:
    monkeypatch.setattr(prepare, "available", lambda: free)
    with pytest.raises(NoRoom) as refusal:
        check_room(jobs, ["torch_sdpa"])
    assert str(refusal.value).startswith(says)


def test_jobs_that_fit_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "available", lambda: 16 * GIB)
    check_room(21, ["torch_sdpa", "trtllm_mha"])


@pytest.mark.parametrize(("gpus", "jobs"), [(0, MOST_JOBS_PER_GPU), (1, MOST_JOBS_PER_GPU), (2, 14)])
def test_by_default_a_gpu_is_shared_by_few_jobs(monkeypatch: pytest.MonkeyPatch, gpus: int, jobs: int) -> None:
    monkeypatch.setattr(prepare, "visible", lambda: ("a GPU",) * gpus)
    assert default_jobs(14, ["sdpa_flash", "torch_sdpa"]) == jobs
    assert default_jobs(3, ["sdpa_flash"]) == 3
    assert default_jobs(14, ["torch_sdpa"]) == 14
