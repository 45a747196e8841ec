"""GPU operations per judged case: launches, copies and waits, and the time on the host."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time

import click
import torch
from gpu_measurement import Table, require_gpu
from in_process import use_one_thread
from measurement import backends_option, count_option, json_option, sample, seed_option
from torch.profiler import ProfilerActivity, profile

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.workers.task import Task
from attnfuzz.reference.case import Case

KINDS = {
    "launches": ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch"),
    "copies": ("cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync"),
    "waits": ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cuCtxSynchronize"),
    "locked": ("cudaHostAlloc", "cudaHostRegister"),
    "mapped": ("cuMemMap", "cuMemUnmap", "cudaMalloc", "cudaFree"),
}
"""Columns, and the functions of the CUDA runtime and driver that each of them counts."""


@click.command()
@backends_option(("cuda_fixup",))
@count_option("--cases", 40, "Cases per backend; those that fail are left out.")
@seed_option
@json_option
def main(*, backends: tuple[str, ...], cases: int, seed: int, json_file: Path | None) -> None:
    """Judge drawn cases in this process, in guarded memory, twice: once timed, and once under torch's profiler.

    Columns are means per case. The first run of each case, which compiles kernels and locks memory, is not measured.
    Cases that fail are left out: a fault would end the process that measures.
    """
    require_gpu()
    use_one_thread()
    columns = ("", "cases", "ms", "CPU ms", "placing", "reference", "judging", *KINDS)
    table = Table("Operations of a case on the GPU, on average", columns, json_file)
    for name in backends:
        passing = [case for case in sample(name, cases, seed) if not _run(case)]
        if passing:
            table.row(name, str(len(passing)), *_cells(passing))


def _run(case: Case, seconds: Counter[str] | None = None) -> bool:
    """Judge a case and add the seconds of its phases to `seconds`. Return whether it fails."""
    verdict = Execution(Task(case=case, backend=case.backend), lambda _: None).run()
    if seconds is not None:
        seconds.update(verdict.seconds)
    return bool(verdict.failures)


def _cells(cases: Sequence[Case]) -> list[str]:
    seconds: Counter[str] = Counter()
    for case in cases:
        _run(case)
    wall, cpu = perf_counter(), process_time()
    for case in cases:
        _run(case, seconds)
    times = [perf_counter() - wall, process_time() - cpu, *(seconds[key] for key in ("place", "reference", "judge"))]
    calls = _calls(cases)
    counted = [sum(calls[name] for name in names) / len(cases) for names in KINDS.values()]
    return [*(f"{1e3 * each / len(cases):.2f}" for each in times), *(f"{each:.1f}" for each in counted)]


def _calls(cases: Sequence[Case]) -> Counter[str]:
    """Return how often each function of the CUDA runtime and driver is called."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for case in cases:
            _run(case)
        torch.cuda.synchronize()
    return Counter({event.key: event.count for event in profiled.key_averages()})


if __name__ == "__main__":
    main()
