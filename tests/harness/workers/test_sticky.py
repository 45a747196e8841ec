"""Workers that leave because a fault broke their CUDA context, and what the parent says of them."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers import gpu_core, sticky
from attnfuzz.harness.workers.gpu_core import Core
from attnfuzz.harness.workers.journal import LaunchRecord
from attnfuzz.harness.workers.postmortem import Death, explain
from attnfuzz.harness.workers.supervisor import Workers
from attnfuzz.reference.case import Guard

QUERY = Allocation("query", 1 << 46, 64, (2, 8), "float32", 4, (8, 1), Guard.RIGHT)
LAUNCH = LaunchRecord(step=2, mode="decode", kernel="xqa", scalars={}, tensors=[QUERY], call=1)


def death(exit_code: int, core_dump: str | None = None) -> Death:
    return Death(
        signal=None,
        exit_code=exit_code,
        hang=False,
        seconds=0.1,
        fault=None,
        entry=LAUNCH.encode(),
        output="CUDA_ERROR_SOMETHING: something happened",
        core_dump=core_dump,
    )


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (700, Kind.ILLEGAL_ACCESS),
        (717, Kind.ILLEGAL_ACCESS),
        (716, Kind.MISALIGNED),
        (719, Kind.WORKER_DIED),
        (710, Kind.WORKER_DIED),
        (715, Kind.WORKER_DIED),
        (214, Kind.WORKER_DIED),
        (702, Kind.HANG),
    ],
)
def test_an_error_is_reported_by_the_exit_code(number: int, kind: Kind) -> None:
    code = sticky.exit_code_of(number)
    found = sticky.sticky_of(code)
    assert found is not None
    assert found.number == number
    seen = explain(death(code))
    assert seen.kind is kind
    assert (seen.step, seen.mode, seen.kernel, seen.call) == (2, "decode", "xqa", 1)
    assert f"{found.words} on the GPU (CUDA error {number})" in seen.message
    assert seen.message.endswith("CUDA_ERROR_SOMETHING: something happened")


def test_every_error_has_an_exit_code_of_its_own() -> None:
    codes = [sticky.exit_code_of(each.number) for each in sticky.STICKY]
    assert len(set(codes)) == len(codes)
    # Shells and Python take 128 and above for signals.
    assert max(codes) < 128


def test_an_unknown_cuda_error_is_a_death_of_the_worker() -> None:
    seen = explain(death(sticky.exit_code_of(12345)))
    assert seen.kind is Kind.WORKER_DIED
    assert seen.place == "an error on the GPU that CUDA does not recover from"


@pytest.mark.parametrize("code", [None, 0, 1, 7, 100, 200])
def test_other_exit_codes_mean_other_things(code: int | None) -> None:
    assert sticky.sticky_of(code) is None


def test_a_fault_without_an_address_names_the_tensors_and_the_way_to_an_address() -> None:
    seen = explain(death(sticky.exit_code_of(700)))
    assert seen.place == "unknown address"
    assert seen.access is None
    assert "one of query is likely" in seen.message
    assert "ATTNFUZZ_CUDA_COREDUMP=FOLDER" in seen.message


def test_a_core_dump_is_named_and_read_instead_of_the_way_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_core, "read", lambda path: Core(f"what {path} tells"))
    seen = explain(death(sticky.exit_code_of(700), core_dump="/dumps/attnfuzz-7.nvcudmp"))
    assert "the GPU's core dump, /dumps/attnfuzz-7.nvcudmp: what /dumps/attnfuzz-7.nvcudmp tells" in seen.message
    assert gpu_core.VARIABLE not in seen.message


class Left(BaseException):
    """The process would have ended here."""


def driver() -> Any:
    return pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings: pip install attnfuzz[gpu]")


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which this process would have left."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Left

    monkeypatch.setattr(sticky, "leave", leave)
    monkeypatch.setattr(driver(), "cuGetErrorName", lambda result: (0, result.name.encode()))
    monkeypatch.setattr(driver(), "cuGetErrorString", lambda _: (0, b"an illegal memory access was encountered"))
    return codes


def broken(monkeypatch: pytest.MonkeyPatch, result: int) -> None:
    """Let every synchronisation of torch's raise, the driver's context being as given."""

    def fail() -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    monkeypatch.setattr(driver(), "cuCtxSynchronize", lambda: (driver().CUresult(result),))


def intact(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def test_a_broken_context_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, left: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    broken(monkeypatch, 700)
    last: list[str] = []
    with pytest.raises(Left):
        sticky.synchronise(lambda: last.append("last"))
    assert (left, last) == ([sticky.exit_code_of(700)], ["last"])
    assert capsys.readouterr().err == "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered\n"


def test_an_error_that_leaves_the_context_intact_is_raised(monkeypatch: pytest.MonkeyPatch, left: list[int]) -> None:
    broken(monkeypatch, 0)
    with pytest.raises(RuntimeError, match="CUDA error"):
        sticky.synchronise(lambda: pytest.fail("the process goes on"))
    assert left == []


def test_a_process_whose_context_is_intact_goes_on(monkeypatch: pytest.MonkeyPatch, left: list[int]) -> None:
    intact(monkeypatch)
    sticky.synchronise()
    assert left == []


@pytest.mark.parametrize(
    ("core", "kind", "place", "said"),
    [
        (Core("Warp Illegal Address", QUERY.address + 64), Kind.ILLEGAL_ACCESS, "query", "read at query: 0 bytes past"),
        (
            Core("Warp MMU Fault", QUERY.address - 8, write=True),
            Kind.ILLEGAL_ACCESS,
            "query",
            "write at query: 8 bytes",
        ),
        (Core("Warp Misaligned Address", QUERY.address + 1), Kind.MISALIGNED, "query", "read at query: 1 bytes inside"),
        # The thread that is known did no wrong: another of its warp did.
        (Core("Warp Illegal Address", QUERY.address + 8), Kind.ILLEGAL_ACCESS, "unknown address", "one of query"),
        (Core("Warp Illegal Address"), Kind.ILLEGAL_ACCESS, "unknown address", "one of query is likely"),
        (Core("Device Assert"), Kind.WORKER_DIED, "", "does not recover from"),
    ],
)
def test_the_fault_is_read_from_a_core_dump(
    monkeypatch: pytest.MonkeyPatch, core: Core, kind: Kind, place: str, said: str
) -> None:
    """Also where CUDA reported no error of it, and the worker left for its dump alone."""
    monkeypatch.setattr(gpu_core, "read", lambda _: core)
    seen = explain(death(sticky.exit_code_of(0), core_dump="/dumps/attnfuzz-7.nvcudmp"))
    assert seen.kind is kind
    assert said in seen.message
    if kind is not Kind.WORKER_DIED:
        assert seen.place == place
        offset = core.address - QUERY.address if core.address is not None and place == "query" else None
        assert (seen.access.offsets["query"] if seen.access else None) == offset


def test_a_worker_leaves_for_its_core_dump_whatever_cuda_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    intact(monkeypatch)
    monkeypatch.setattr(sticky, "leave", left.append)
    sticky.synchronise()
    monkeypatch.setenv("CUDA_COREDUMP_FILE", str(tmp_path / "of-%p"))
    sticky.synchronise()
    assert left == []
    (tmp_path / f"of-{os.getpid()}").touch()
    sticky.synchronise(lambda: left.append(-1))
    assert left == [-1, sticky.exit_code_of(0)]


@pytest.mark.slow
def test_the_core_dump_of_a_worker_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu_core.VARIABLE, str(tmp_path / "dumps"))
    pattern = gpu_core.settings()["CUDA_COREDUMP_FILE"]
    with Workers("deadly_handlers:obey") as workers:
        reply = workers.run(b"who", timeout=60)
        assert isinstance(reply, bytes)
        written = Path(pattern.replace("%p", reply.decode().split()[0]))
        written.write_bytes(b"")
        ended = workers.run(f"leave {sticky.exit_code_of(719)}".encode(), timeout=60)
    assert isinstance(ended, Death)
    assert ended.core_dump == str(written)
    assert str(written) in explain(ended).message


def test_without_being_asked_for_there_are_no_core_dumps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpu_core.VARIABLE, raising=False)
    assert gpu_core.settings() == {}
    assert gpu_core.written_by(1) is None
