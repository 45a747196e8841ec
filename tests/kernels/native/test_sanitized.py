"""A planted overrun and planted undefined behaviour fail `make sanitize`. Elsewhere skipped: the build takes 40 s."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SANITIZED = Path(__file__).parents[3] / "scripts/sanitized.sh"

# They start processes, because one with a report ends.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("-fsanitize" not in os.environ.get("CXX", ""), reason="runs in make sanitize alone"),
]

DECODE = """
import os, sys
import torch
from attnfuzz.kernels.native.ops import NATIVE

need = NATIVE.decode_workspace(batch=1, q_len=1, q_heads=1, kv_heads=1, head_dim_vo=8, max_seq_len=64).total
plan = {{
    "workspace_buffer": torch.zeros(need, dtype=torch.uint8),
    "seq_lens": torch.full((1,), 64, dtype=torch.int32),
}}
{change}
if sys.argv[1:] != ["child"] or not (child := os.fork()):
    NATIVE.decode.function(
        query=torch.ones(1, 1, 8),
        kv_cache=torch.ones(1, 2, 1, 64, 8),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        max_seq_len=64,
        **plan,
    )
    os._exit(0)
os.waitpid(child, 0)
"""


OVERRUN = 'plan["workspace_buffer"] = plan["workspace_buffer"][:-4].clone()'


def sanitized(change: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = DECODE.format(change=change)
    return subprocess.run(
        [SANITIZED, sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )


def test_a_call_on_tensors_that_are_large_enough_has_no_report() -> None:
    done = sanitized("")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_write_past_a_tensor_on_the_heap_is_reported_with_its_line() -> None:
    done = sanitized(OVERRUN)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    assert "split_kv.cpp" in done.stderr


def test_the_report_of_a_child_fails_a_command_that_ends_well() -> None:
    done = sanitized(OVERRUN, "child")
    assert done.returncode == 1
    assert "heap-buffer-overflow" in done.stderr


def test_undefined_behaviour_is_reported_with_its_line() -> None:
    done = sanitized('plan["seq_lens"] = torch.frombuffer(bytearray(5), dtype=torch.int32, offset=1)')
    assert done.returncode != 0
    assert "runtime error: load of misaligned address" in done.stderr
    assert "views.h" in done.stderr
