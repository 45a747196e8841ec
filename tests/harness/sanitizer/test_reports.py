"""Reports of compute-sanitizer in the formats of its manual and of public issues, among the marks of the process."""

import pytest

from attnfuzz.harness.sanitizer.marks import CaseMark, LaunchMark
from attnfuzz.harness.sanitizer.reports import Instruction, distinct, parse, short_name
from attnfuzz.harness.sanitizer.run import observations
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.sanitizer_tool import SanitizerTool

RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in /home/cuda/github/compute-sanitizer-samples/Racecheck/block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in /home/cuda/github/compute-sanitizer-samples/Racecheck/block_error.cu:51 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""  # noqa: E501 - as printed
"""https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html, "Block-level Hazards"."""

TWO_READS = """\
========= COMPUTE-SANITIZER
out shape: 2 x 2
========= Error: Race reported between Write access at p10_shared_memory_race_...+0x140
=========     and Read access at p10_shared_memory_race_...+0xe0 [4 hazards]
=========     and Write access at p10_shared_memory_race_...+0x140 [5 hazards]
=========
out: HostBuffer([0.0, 0.0, 0.0, 0.0])
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
"""Without debug information: modular/mojo-gpu-puzzles, p10."""

WARNING = """\
========= Warning: Race reported between Read access at 0x570 in void Kokkos::Impl::cuda_parallel_launch_local_memory<Kokkos::Impl::ParallelReduce<void, Kokkos::Cuda>>(T1)
=========     and Write access at 0x5d0 in void Kokkos::Impl::cuda_parallel_launch_local_memory<Kokkos::Impl::ParallelReduce<void, Kokkos::Cuda>>(T1) [24 hazards]
"""  # noqa: E501 - as printed
"""An older release, with the offset first: E3SM-Project/scream pull request 2379."""

BARRIER = """\
========= Barrier error detected. Divergent thread(s) in warp.
=========     at illegal_sync_kernel(int *)+0xa0 in 09_debug_and_sanitizer.cu:61
=========     by thread (19,0,0) in block (0,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main [0x1754] in 01_cuda_basics_09_debug_and_sanitizer
=========
========= Barrier error detected. Divergent thread(s) in warp.
=========     at illegal_sync_kernel(int *)+0xa0 in 09_debug_and_sanitizer.cu:61
=========     by thread (21,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
"""A public course's recorded output (09_debug_and_sanitizer.cu)."""

INLINED = """\
========= Barrier error detected. Divergent thread(s) in block.
=========     at void flash_attn_ext_f16_process_tile<(int)256, (int)256>(float2 const *, int)+0x176b0 in fattn-mma-f16.cuh:1732
=========     by thread (0,0,0) in block (0,0,0)
=========         Device Frame: void flash_attn_ext_f16<(int)256, (int)256, (bool)0>(char const *, int)+0x10640 in fattn-mma-f16.cuh:2104
=========
"""  # noqa: E501 - as printed
"""An inlined function and its kernel: synccheck of llama.cpp's attention, with --show-backtrace device."""

UNINITIALIZED = """\
========= Uninitialized __global__ memory read of size 16 bytes
=========     at void flash_attn_mma_ext_f16<(int)128, (int)2, (bool)0>(const char *, const int2 *, float *, int)+0x4c10
=========     by thread (10,1,0) in block (45,0,0)
=========     Address 0x7ff3a80007a0
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuGraphLaunch [0x3a1fef] in libcuda.so.1
=========
"""
"""ikawrakow/ik_llama.cpp pull request 1022."""

MISALIGNED = """\
========= Invalid __global__ write of size 4 bytes
=========     at misaligned_access_kernel(char *, int)+0x380 in memory_errors.cu:61
=========     by thread (65,0,0) in block (0,0,0)
=========     Access to 0x7bd889c03041 is misaligned
=========     and is inside the nearest allocation at 0x7bd889c03000 of size 1,024 bytes
========= ERROR SUMMARY: 769 errors
"""
"""A public tutorial's recorded output (memory_errors.cu)."""

OUT_OF_BOUNDS = """\
========= Invalid __global__ read of size 2 bytes
=========     at attnfuzz::<unnamed>::access(volatile unsigned short *, bool)+0x60
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x7f7fcdc01300 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f7fcdc01200 of size 256 bytes
"""


@pytest.mark.parametrize(
    ("text", "kind", "kernel", "place"),
    [
        (RACE, Kind.RACE, "sumKernel", "shared memory, write and read at block_error.cu:41, block_error.cu:51"),
        (TWO_READS, Kind.RACE, "p10_shared_memory_race_...", "shared memory, write and read and write"),
        (WARNING, Kind.RACE, "cuda_parallel_launch_local_memory", "shared memory, read and write, a warning"),
        (BARRIER, Kind.BARRIER_MISUSED, "illegal_sync_kernel", "Divergent thread(s) in warp"),
        (INLINED, Kind.BARRIER_MISUSED, "flash_attn_ext_f16", "Divergent thread(s) in block"),
        (UNINITIALIZED, Kind.UNINITIALIZED_READ, "flash_attn_mma_ext_f16", "global memory"),
        (MISALIGNED, Kind.MISALIGNED, "misaligned_access_kernel", "global memory, write"),
        (OUT_OF_BOUNDS, Kind.ILLEGAL_ACCESS, "access", "global memory, read"),
    ],
)
def test_a_report_has_a_kind_a_kernel_and_a_place(text: str, kind: Kind, kernel: str, place: str) -> None:
    ((report, _),) = distinct(parse(text.splitlines()).reports)
    assert (report.kind, report.kernel) == (kind, kernel)
    assert report.place.startswith(place)


def test_an_instruction_has_a_function_an_offset_and_a_source_line() -> None:
    (report,) = parse(INLINED.splitlines()).reports
    assert report.at[0].offset == 0x176B0
    assert report.at[0].source == "fattn-mma-f16.cuh:1732"
    (older,) = parse(WARNING.splitlines()).reports
    assert [each.offset for each in older.at] == [0x570, 0x5D0]
    line = "=========     at 0xa0a50 in cub/thread/thread_load.cuh:272:ThreadLoad<LOAD_CG,const unsigned int *>"
    (located,) = parse(["========= Uninitialized __global__ memory read of size 4 bytes", line]).reports
    assert located.at == [
        Instruction("ThreadLoad<LOAD_CG,const unsigned int *>", 0xA0A50, "cub/thread/thread_load.cuh:272")
    ]


def test_reports_alike_are_one_failure_of_the_launch_between_whose_marks_they_are() -> None:
    launch = LaunchMark("batch_decode_run", 2, "decode")
    lines = [
        CaseMark(case=0, begins=True).line,
        CaseMark(case=0).line,
        CaseMark(case=1, begins=True).line,
        CaseMark(case=1, launch=launch).line,
        *BARRIER.splitlines(),
        CaseMark(case=1, unsupported="no kernel").line,
    ]
    log = parse(lines)
    assert log.ended == [0, 1]
    assert log.unsupported == {1: "no kernel"}
    assert {report.case for report in log.reports} == {1}
    (failure,) = observations(log.reports, SanitizerTool.SYNCCHECK)
    assert (failure.step, failure.mode, failure.kernel) == (2, "decode", "illegal_sync_kernel")
    assert "2 reports like this" in failure.message
    assert "09_debug_and_sanitizer.cu:61" in failure.message


def test_a_report_on_a_kernel_of_guarded_memory_is_no_failure() -> None:
    line = "=========     at attnfuzz::<unnamed>::compare_runs(attnfuzz::<unnamed>::Runs, bool)+0x9a0"
    log = parse(["========= Uninitialized __global__ memory read of size 16 bytes", line])
    assert len(log.reports) == 1
    assert observations(log.reports, SanitizerTool.INITCHECK) == []


def test_trouble_of_the_tool_is_kept_apart_from_reports() -> None:
    log = parse(
        [
            "========= COMPUTE-SANITIZER",
            "========= Error: Target application terminated before first instrumented API call",
        ]
    )
    assert log.reports == []
    assert log.troubles == ["Error: Target application terminated before first instrumented API call"]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("void flashinfer::(anonymous namespace)::Kernel<(int)1, flashinfer::X<float>>(T1, int)", "Kernel"),
        ("sgemm_32x32x32_NT_vec", "sgemm_32x32x32_NT_vec"),
        ("std::iterator_traits<T2>::value_type cub::ThreadLoad<(int)2>(T2)", "ThreadLoad"),
    ],
)
def test_a_kernel_has_the_short_name_of_its_function(function: str, name: str) -> None:
    assert short_name(function) == name
