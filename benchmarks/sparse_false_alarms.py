"""Judge many rows of correct kernels of sparse attention: none may fail.

    python benchmarks/sparse_false_alarms.py [--backend native:sparse] [--seconds 60]

For each op (and each format of the KV cache), wide decode and verify steps of random lengths, orders, tails, scores and
values are run in this process. Prints cases, rows, rows per second, the failures, and the largest margin of each tier.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from typing import Any

from in_process import judged_rows, use_one_thread
from measurement import show

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


def main() -> None:
    """Run each op for some seconds, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="native:sparse")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each op and format")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    use_one_thread()
    can: Any = backend_of(given.backend).capability
    kinds = [(op, kind) for op in SparseOp for kind in (can.formats if op is SparseOp.ATTENTION else can.formats[:1])]
    rows = [measured(given.backend, op, kind, given.seconds, given.seed) for op, kind in kinds if (op,) in can.chains]
    show(f"Rows of {given.backend}", ("op", "cases", "rows", "rows/s", "failures", "largest margins"), rows)


def measured(name: str, op: SparseOp, kind: KvFormat, seconds: float, seed: int) -> tuple[str, ...]:
    """Run cases of one op, and return a row of the table."""
    can = backend_of(name).capability
    supported = (case for case in drawn(name, op, kind, seed) if possible(case) and can.why_not(case) is None)
    label = f"{op}, {kind}" if op is SparseOp.ATTENTION else str(op)
    return label, *judged_rows(supported, seconds=seconds)


def drawn(name: str, op: SparseOp, kind: KvFormat, seed: int) -> Iterator[SparseCase]:
    """Yield wide cases."""
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
        yield SparseCase(
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


if __name__ == "__main__":
    main()
