"""Cost of importing a dump, by its size: a call with a large KV pool that uses only a small part of it."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from measurement import show

sys.path.append(str(Path(__file__).parents[1] / "tests" / "fakes"))

from dump_maker import DECODE, Dumper, rewrite, sparse_safetensors

from attnfuzz.harness.dumps.case_of_call import make_case
from attnfuzz.harness.dumps.contents import Contents
from attnfuzz.harness.dumps.find_calls import read_dump
from attnfuzz.reference import case_file

REQUESTS = 16
PAGES_PER_REQUEST = 32
HEADS, SLOTS, DIM = 8, 16, 64
PAGE_BYTES = 2 * HEADS * SLOTS * DIM * 2


@click.command()
@click.option(
    "--gigabytes",
    multiple=True,
    type=click.FloatRange(min=0.1),
    default=(1, 4, 16),
    show_default=True,
    help="Of a pool.",
)
@click.option("--child", type=click.Path(path_type=Path), hidden=True)
@click.option("--contents", default=Contents.VALUES.value, hidden=True)
def main(*, gigabytes: tuple[float, ...], child: Path | None, contents: str) -> None:
    """Measure time and peak memory of importing calls that need 512 pages of a pool of several gigabytes.

    The pool is a hole in a file and takes no disk space: reads return zeros. Memory is the peak of the private memory
    of a process that imports one call. Pages of the mapped file don't count: they belong to the operating system, which
    reclaims them when needed. The first row is a process that imports nothing.
    """
    if child is not None:
        _import(child, Contents(contents))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="attnfuzz-importing-") as folder:
        rows.append(("nothing", "", *_measured(Path(os.devnull), Contents.SEED)))
        for size in gigabytes:
            dump = Path(folder) / f"{size}"
            _make(dump, round(size * (1 << 30)))
            rows += [(f"{size:g} GB", kind.value, *_measured(dump, kind)) for kind in Contents]
    kept = REQUESTS * PAGES_PER_REQUEST * PAGE_BYTES
    show(f"Importing a call that needs {kept >> 20} MiB", ("dump", "contents", "seconds", "own MiB", "case MiB"), rows)


def _make(folder: Path, nbytes: int) -> None:
    """Write a dump of a decode over a pool of `nbytes` bytes that uses pages from all over it."""
    pages = nbytes // PAGE_BYTES
    needed = REQUESTS * PAGES_PER_REQUEST
    table = (torch.arange(needed) * (pages // needed)).view(REQUESTS, PAGES_PER_REQUEST).to(torch.int32)
    tensors = {
        "kwarg_query": torch.randn(REQUESTS, 4 * HEADS, DIM).to(torch.bfloat16),
        "kwarg_workspace_buffer": torch.zeros(128 << 20, dtype=torch.uint8),
        "kwarg_block_tables": table,
        "kwarg_seq_lens": torch.full((REQUESTS,), PAGES_PER_REQUEST * SLOTS, dtype=torch.int32),
    }
    shape = (pages, 2, HEADS, SLOTS, DIM)
    given: dict[str, Any] = {name.removeprefix("kwarg_"): tensor for name, tensor in tensors.items()}
    one_page = torch.zeros(1, *shape[1:], dtype=torch.bfloat16)
    call = Dumper(folder, tensor_format="safetensors", session=False).call(
        DECODE, **given, kv_cache=one_page, max_seq_len=PAGES_PER_REQUEST * SLOTS, bmm1_scale=0.125
    )
    details = json.loads((call / "metadata.jsonl").read_text())["tensor_details"]
    details["kwarg_kv_cache"]["shape"] = shape
    rewrite(call, tensor_details=details)
    sparse_safetensors(call / "inputs.safetensors", tensors, "kwarg_kv_cache", shape)


def _measured(dump: Path, contents: Contents) -> tuple[str, str, str]:
    """Return seconds, peak memory and the size of the case, as reported by a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", dump, "--contents", contents.value],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, peak, size = done.stdout.split()
    return seconds, peak, size


def _import(dump: Path, contents: Contents) -> None:
    start = os.times().elapsed
    size = 0
    with own_memory() as peak:
        if dump.is_dir():
            path = dump / "case.json"
            case_file.save(path, make_case(read_dump(dump).calls[0], contents=contents))
            size = sum(file.stat().st_size for file in dump.glob("case.*"))
    seconds = os.times().elapsed - start
    print(f"{seconds:.1f} {max(peak) >> 10} {size / (1 << 20):.1f}")


@contextmanager
def own_memory() -> Iterator[list[int]]:
    """Sample the KiB of this process's memory not backed by files: the kernel records no peak of it."""
    noted, over = [_own_kib()], threading.Event()

    def note() -> None:
        while not over.wait(0.002):
            noted.append(_own_kib())

    thread = threading.Thread(target=note)
    thread.start()
    try:
        yield noted
    finally:
        over.set()
        thread.join()
        noted.append(_own_kib())


def _own_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


if __name__ == "__main__":
    main()
