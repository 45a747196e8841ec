"""GPU core dumps: where a kernel stopped and at which address, as CUDA-GDB prints it."""

from pathlib import Path

import pytest

from attnfuzz.harness.workers import gpu_core
from attnfuzz.harness.workers.gpu_core import understood

STRAY = """\
Opening GPU coredump: q_read.nvcudmp
[Current focus set to CUDA kernel 0, grid 1, block (0,0,0), thread (0,0,0), device 0, sm 124, warp 0, lane 0]

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7fed337a0070  stray(unsigned short volatile*, bool)
#0  0x00007fed337a0090 in stray(unsigned short volatile*, bool)<<<(1,1,1),(1,1,1)>>> ()
*> 0x7fed337a0070 <_Z5strayPVtb+112>:\tLDG.E.U16.STRONG.SYS R0,desc[UR4][R2.64]
   0x7fed337a0080 <_Z5strayPVtb+128>:\tBETWEEN
=> 0x7fed337a0090 <_Z5strayPVtb+144>:\tPRMT R5,R0,0x9910,RZ
   0x7fed337a00a0 <_Z5strayPVtb+160>:\tPRMT R2,R4,0x9910,RZ
   0x7fed337a00c0 <_Z5strayPVtb+192>:\t@!P0 EXIT
pc             0x7fed337a0090      0x7fed337a0090 <stray(unsigned short volatile*, bool)+144>
errorpc        0x7fed337a0070      0x7fed337a0070 <stray(unsigned short volatile*, bool)+112>
R0             0x0                 0
R1             0xfffdc0            16776640
R2             0x2be00000          736100352
R3             0x80ed              33005
P0             0x0                 0
UR4            0x0                 0
"""
"""Of a read of 0x80ed2be00000, printed on an H200 but for what is BETWEEN, which was not asked for, and the R2 of the
line after next.
"""

ADDRESS = 0x80ED2BE00000
FAILED = "LDG.E.U16.STRONG.SYS R0,desc[UR4][R2.64]"


def test_a_stray_read_is_reported_with_its_kernel_its_instruction_and_its_address() -> None:
    core = understood(STRAY)
    assert core.words == (
        "Warp Illegal Address, in stray(unsigned short volatile*, bool)<<<(1,1,1),(1,1,1)>>>, in the warp of thread "
        f"(0,0,0) in block (0,0,0), at {FAILED}"
    )
    assert (core.address, core.write, core.illegal, core.misaligned) == (ADDRESS, False, True, False)


@pytest.mark.parametrize(
    ("instruction", "address", "write"),
    [
        ("LDG.E.128 R8,desc[UR4][R2.64+0x10]", ADDRESS + 16, False),
        ("LDG.E.128 R8,desc[UR4][R2.64+-0x10]", None, False),
        ("LDG.E.128 R8,desc[UR4][R2.64-0x10]", ADDRESS - 16, False),
        ("LDGSTS.E.BYPASS.128 desc[UR6][R2.64][R9]", ADDRESS, False),
        ("STG.E.U16 desc[UR4][R2.64],R5", ADDRESS, True),
        ("ATOMG.E.ADD.STRONG.GPU PT,R9,desc[UR4][R2.64],R5", ADDRESS, True),
        # Of a bulk copy the registers were seen to hold something else by then, of a TMA's there is no address.
        ("UBLKCP.S.G [UR6][UR4],UR8", None, False),
        ("UTMALDG.2D [UR8],[UR4]", None, False),
        ("LDG.E R0,desc[UR4][R200.64]", None, False),
    ],
)
def test_an_address_is_that_of_a_pair_of_registers(instruction: str, address: int | None, *, write: bool) -> None:
    core = understood(STRAY.replace(FAILED, instruction))
    assert (core.address, core.write) == (address, write)


@pytest.mark.parametrize(
    ("between", "known"),
    [("IADD3 R4,R2,R3,RZ", True), ("IADD3 R3,R2,R3,RZ", False), ("LDG.E.128 R0,desc[UR4][R8.64]", False)],
)
def test_registers_that_may_have_changed_since_tell_no_address(between: str, *, known: bool) -> None:
    assert (understood(STRAY.replace("BETWEEN", between)).address == ADDRESS) is known


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("\nno such file\n", "it can't be read: no such file"),
        ("", "it can't be read: nothing was printed"),
        ("CUDA Exception: Warp Misaligned Address\n", "Warp Misaligned Address"),
    ],
)
def test_facts_missing_from_a_core_dump_are_not_reported(output: str, words: str) -> None:
    core = understood(output)
    assert (core.words, core.address) == (words, None)


def test_a_dump_is_read_where_there_is_a_debugger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_core.read("7.nvcudmp").words == (
        "cuda-gdb, of the CUDA toolkit, is not on the PATH to read it: target cudacore 7.nvcudmp"
    )
    debugger = tmp_path / "cuda-gdb"
    debugger.write_text('#!/bin/sh\necho "CUDA Exception: $5, $6"\n')
    debugger.chmod(0o755)
    assert gpu_core.read("7.nvcudmp").words == "-ex, target cudacore 7.nvcudmp"


def test_a_debugger_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debugger = tmp_path / "cuda-gdb"
    debugger.write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    debugger.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_core, "_SECONDS", 0.1)
    assert gpu_core.read("7.nvcudmp").words.startswith("cuda-gdb did not read it within 0.1 s")
