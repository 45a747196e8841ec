"""Where workers hang, as they say themselves."""

import ctypes.util
import itertools
from pathlib import Path

import pytest

from attnfuzz.harness.workers import stacks
from attnfuzz.harness.workers.postmortem import Death, explain
from attnfuzz.harness.workers.supervisor import Workers


def lines_of(workers: Workers, request: str) -> list[str]:
    """Where a worker hangs that is asked for this."""
    death = workers.run(request.encode(), timeout=0.2)
    assert isinstance(death, Death)
    assert death.hang
    assert f"\nwhere it hung:\n{death.stacks}" in explain(death).message or not death.stacks
    return death.stacks.splitlines()


def test_a_loop_in_python_is_named_with_its_callers(workers: Workers) -> None:
    lines = lines_of(workers, "loop")
    assert lines[0] == "Python stack, innermost first:"
    inner, outer, handler = lines[1:4]
    assert inner.startswith("  fakes/deadly_handlers.py:")
    assert [line.rpartition(" in ")[2] for line in (inner, outer, handler)] == ["_compute", "_wait", "obey"]
    # Those of the worker are left out.
    assert not lines[4:] or lines[4].startswith("native stack")


@pytest.mark.skipif(not Path("/usr/include/execinfo.h").exists(), reason="glibc writes native stacks")
def test_a_native_function_that_never_returns_is_named(workers: Workers) -> None:
    lines = lines_of(workers, "pause")
    native = lines[lines.index("native stack, innermost first:") + 1 :]
    assert "pause" in native[0]
    assert "libc" in native[0]
    assert lines[1].endswith("in _wait")


def test_a_loop_in_another_thread_is_named(workers: Workers) -> None:
    lines = lines_of(workers, "in_a_thread")
    other = lines.index("and of another thread:")
    assert any(line.endswith("in join") for line in lines[:other])
    assert lines[other + 1].endswith("in _compute")


def test_a_worker_that_takes_no_signals_hangs_without_a_stack(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_SECONDS", 0.1)
    assert lines_of(workers, "deaf") == []
    assert workers.run(b"who", timeout=60) != b""


def test_a_process_inside_a_driver_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        stacks = ""

    monkeypatch.setattr(stacks, "_state", lambda _: "D")
    monkeypatch.setattr(stacks, "_wchan", lambda _: ", nvidia_ioctl")
    monkeypatch.setattr(stacks, "_SECONDS", 0.0)
    monkeypatch.setattr(stacks, "_send", lambda *_: None)
    assert stacks.asked(1, Silent()) == (  # type: ignore[arg-type]
        "in the kernel, which does not let it go (state D, nvidia_ioctl)"
    )


def test_frames_of_kernels_are_shown_and_those_of_the_interpreter_are_not() -> None:
    text = "".join(
        f"{line}\n"
        for line in (
            "thread 12",
            "/lib/mine.so(+0x1) [0x1]",
            "/lib/libc.so.6(+0x2) [0x2]",
            "/usr/lib/libcuda.so.1(+0x3f2) [0x3]",
            "/lib/mine.so(_ZN8attnfuzz6attendEi+0x10) [0x4]",
            "/usr/bin/python3.11(_PyEval_EvalFrameDefault+0x5) [0x5]",
            "end",
        )
    )
    assert list(stacks._native(text)) == [
        "native stack, innermost first:",
        "  (no symbol) (libcuda.so.1)",
        "  attnfuzz::attend(int) (mine.so)",
        "  Python's interpreter",
    ]
    interpreted = text.replace("/usr/lib/libcuda.so.1(", "/usr/bin/python3.11(").replace("mine.so(_ZN8", "python3(_ZN8")
    assert list(stacks._native(interpreted, " of thread 7")) == [
        "native stack of thread 7, innermost first:",
        "  Python's interpreter",
    ]


def test_a_deep_recursion_is_cut() -> None:
    frames = "".join(f'  File "/a/b/c.py", line {line} in f\n' for line in range(1, 31))
    lines = list(stacks._python(f"Current thread 0x00 (most recent call first):\n{frames}"))
    assert lines[:2] == ["Python stack, innermost first:", "  b/c.py:1, in f"]
    assert lines[-1] == "  and 20 more"
    many = "".join(
        f'Thread 0x{number} (most recent call first):\n  File "c.py", line {number} in f\n' for number in range(9)
    )
    assert [line for line in stacks._python(many) if line.startswith("  ")] == [
        f"  c.py:{number}, in f" for number in itertools.islice(range(8, -1, -1), 4)
    ]


def test_a_symbol_that_is_no_cpp_name_stays() -> None:
    assert stacks.demangled("pause") == "pause"
    if ctypes.util.find_library("stdc++") is not None:
        assert stacks.demangled("_ZN8attnfuzz6attendEi") == "attnfuzz::attend(int)"
