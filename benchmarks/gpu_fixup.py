"""Speed of the CUDA fixup, compared with torch.zero_ on the same bytes."""

from itertools import accumulate
from pathlib import Path

import click
import torch
from gpu_measurement import Table, captured, in_pairs, require_gpu
from measurement import count_option, json_option

from attnfuzz.kernels.cuda import nvcc
from attnfuzz.kernels.gpu.states import FIXUP_SOURCE

HEADS = DIM = 128
ROW_BYTES = HEADS * (DIM * 2 + 4)
"""Bytes per token: a row of out in bf16, and its statistics in fp32."""

TOKENS = (64, 256, 1024, 4096, 8192, 32768, 131072)

BATCHES = {
    "one empty among 64 requests of 128": ([128] * 64, {0}),
    "one empty among 64 requests of 2,048": ([2048] * 64, {63}),
    "none empty among 64 requests of 128": ([128] * 64, set()),
    "one of 131,008 among 64 of 1, all empty": ([1] * 32 + [131008] + [1] * 32, set(range(65))),
}

BYTES_PER_ROUND = 1 << 30

FLOOR = Path(__file__).with_name("read_then_write.cu")
"""A kernel that reads one number before it writes."""


@click.command()
@count_option("--rounds", 60, "Pairs of measurements of each size.")
@json_option
def main(*, rounds: int, json_file: Path | None) -> None:
    """Time the fixup and one zero_ over as many bytes, launched from Python and in a graph.

    The bytes are the part of out [tokens, 128, 128] in bf16 and of lse [tokens, 128] in fp32 that the fixup has to
    write. zero_ writes them as one tensor, whose place is known on the host. The floor is a kernel that reads one
    number on the GPU before it writes as many bytes. Each number, ratios included, is a median over pairs.
    """
    require_gpu()
    kernel = nvcc.load(FIXUP_SOURCE).fixup_zero_kv_rows
    read_then_write = nvcc.load(FLOOR).read_then_write
    number = torch.zeros(1, dtype=torch.int32, device="cuda")
    out = torch.empty(max(TOKENS), HEADS, DIM, dtype=torch.bfloat16, device="cuda")
    lse = torch.empty(max(TOKENS), HEADS, device="cuda")
    flat = torch.empty(max(TOKENS) * ROW_BYTES, dtype=torch.uint8, device="cuda")

    def measure(table: Table, name: str, lengths: list[int], empty: set[int]) -> None:
        kv_lens = torch.tensor([0 if index in empty else 9 for index in range(len(lengths))], dtype=torch.int32).cuda()
        starts = torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32).cuda()
        tokens, cleared = sum(lengths), sum(lengths[index] for index in empty)
        size = max(cleared, 1) * ROW_BYTES
        calls = max(1, min(20, BYTES_PER_ROUND // size))
        here, zeroed = (out[:tokens], lse[:tokens]), flat[:size]

        def fixup() -> None:
            kernel(*here, kv_lens, starts, max(lengths))

        mine, theirs, ratio = in_pairs(fixup, zeroed.zero_, rounds=rounds, calls=calls)
        graph, zero_graph, floor_graph = (
            captured(each, calls) for each in (fixup, zeroed.zero_, lambda: read_then_write(zeroed, number))
        )
        my_work, their_work, work_ratio = in_pairs(graph, zero_graph, rounds=rounds, calls=1)
        _, floor_work, floor_ratio = in_pairs(graph, floor_graph, rounds=rounds, calls=1)
        times = (mine, theirs, my_work / calls, their_work / calls, floor_work / calls)
        launched, zero, work, zero_work, floor = (f"{seconds * 1e6:.1f}" for seconds in times)
        rate = f"{cleared * ROW_BYTES / (my_work / calls) / 1e12:.2f}"
        ratios = (f"{ratio:.2f}", f"{work_ratio:.2f}", f"{floor_ratio:.2f}")
        table.row(name, launched, zero, ratios[0], work, zero_work, ratios[1], floor, ratios[2], rate)

    columns = (
        *("", "fixup, us", "zero_, us", "zero_ over it"),
        *("in a graph", "zero_", "zero_ over it", "floor", "floor over it", "TB/s"),
    )
    table = Table("The fixup and zero_", columns, json_file)
    for tokens in TOKENS:
        measure(table, f"{tokens:,} tokens of one empty request", [tokens], {0})
    for name, (lengths, empty) in BATCHES.items():
        measure(table, name, lengths, empty)


if __name__ == "__main__":
    main()
