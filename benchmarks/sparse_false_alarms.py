"""Judge many rows of correct kernels of sparse attention: none may fail.

    python benchmarks/sparse_false_alarms.py [--backend native:sparse ...] [--rows 1000000] [--seconds 60] [--jobs 2]

For each op (and each format of the KV cache), wide decode and verify steps of random lengths, orders, tails, scores and
values run in one process or more, until as many rows were judged or the time is over. Prints cases, rows, rows per
second of a process, the failures, and the largest margin of each tier.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import click
from judged_rows import COLUMNS, judged_rows
from measurement import backends_option, count_option, seed_option, show

from attnfuzz.harness.inside.execute import backend_of
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.sparse.capability import VALUES
from attnfuzz.reference.sparse.case import (
    FIXED_DIMS,
    OF_PRODUCTS,
    KvFormat,
    ListOrder,
    Scores,
    SparseCase,
    SparseGeometry,
    SparseMode,
    SparseOp,
    SparseRequest,
    SparseStep,
    Tail,
)

_BATCH, _STEPS = 64, 4
_LONGEST = 96


@click.command(help=__doc__)
@backends_option(("native:sparse",))
@count_option("--rows", 1_000_000, "For each op and format.")
@click.option("--seconds", type=click.FloatRange(min=0), default=60.0, show_default=True, help="For each of them.")
@count_option("--jobs", 1, "Processes.")
@seed_option
def main(backends: tuple[str, ...], rows: int, seconds: float, jobs: int, seed: int) -> None:
    """Measure each backend, and print a table."""
    groups = [(name, op, kind) for name in backends for op, kind in _ops(name)]
    judged = judged_rows(drawn, groups, jobs=jobs, rows=rows, seconds=seconds, seed=seed)
    table = [
        (f"{op}, {kind}" if op is SparseOp.ATTENTION else str(op), name, *each.cells)
        for (name, op, kind), each in zip(groups, judged, strict=True)
    ]
    show("Rows of sparse attention", ("op", "backend", *COLUMNS), table)


def _ops(name: str) -> list[tuple[SparseOp, KvFormat]]:
    """Return the ops that a backend runs alone, attention with each format."""
    can: Any = backend_of(name).capability
    return [
        (op, kind)
        for op in SparseOp
        if (op,) in can.chains
        for kind in (can.formats if op is SparseOp.ATTENTION else can.formats[:1])
    ]


def drawn(name: str, op: SparseOp, kind: KvFormat, seed: int) -> Iterator[SparseCase]:
    """Yield wide cases that the backend supports."""
    source = random.Random(seed)
    can: Any = backend_of(name).capability

    def one_of(options: Sequence[Any], limits: Sequence[Any] = ()) -> Any:
        return source.choice([each for each in options if not limits or each in limits] or list(limits))

    while True:
        dim, value_dim = FIXED_DIMS.get(kind, (48, 32))
        geometry = SparseGeometry(
            page_size=one_of((1, 16, 64), can.page_sizes),
            index_heads=one_of((1, 4, 16), can.heads),
            index_dim=one_of((32, 128), can.index_dims),
            top_k=one_of((8, 32, 64), can.top_ks),
            format=kind,
            query_heads=16,
            kv_heads=one_of((1, 4)) if kind is KvFormat.HEADS else 1,
            dim=dim,
            value_dim=value_dim,
            sinks=one_of(can.sinks),
            second=one_of((8,)) if one_of(can.seconds) else 0,
            counts=one_of(can.counts),
            powers=one_of(can.powers),
        )
        queries = one_of((1, 1, 3)) if SparseMode.VERIFY in can.modes else 1
        longest = source.choice((_LONGEST, _LONGEST, 6 * _LONGEST))
        steps = tuple(
            SparseStep(
                mode=SparseMode.DECODE if queries == 1 else SparseMode.VERIFY,
                requests=tuple(
                    SparseRequest(queries, source.randint(queries, longest))
                    for _ in range(_BATCH * _LONGEST // longest)
                ),
                padding=source.choice((0, 3)),
            )
            for _ in range(_STEPS)
        )
        products = op in (SparseOp.WRITE, SparseOp.LOGITS)
        case = SparseCase(
            backend=name,
            ops=(op,),
            steps=steps,
            geometry=geometry,
            scores=one_of(OF_PRODUCTS if products else tuple(Scores), can.scores),
            values=one_of((*VALUES, ValueFamily.UNEVEN) if op is SparseOp.WRITE else VALUES, can.values),
            order=one_of(tuple(ListOrder)) if op in (SparseOp.TRANSFORM, SparseOp.ATTENTION) else ListOrder.RECENT,
            tail=one_of(tuple(Tail), can.tails),
            seed=source.randrange(1 << 31),
        )
        if possible(case) and can.why_not(case) is None:
            yield case


if __name__ == "__main__":
    main()
