"""Cases of sparse attention in words."""

from collections.abc import Iterator
from itertools import groupby

from attnfuzz.reference.case_file import case_id
from attnfuzz.reference.sparse.case import KvFormat, SparseCase, SparseOp, SparseStep


def describe(case: SparseCase) -> str:
    """Return lines for the ops, their geometry, each step, and fields without their defaults."""
    lines = [f"case {case_id(case)} for {case.backend}", f"ops       {', then '.join(case.ops)}"]
    lines += [f"geometry  {each}" for each in _geometry(case)]
    lines += [f"step {at:<5}{_step(step)}" for at, step in enumerate(case.steps)]
    fields = {
        "values": (case.scores, f"{case.values} values", f"seed {case.seed}" if case.seed else ""),
        "lists": (f"{case.order} lists", f"{case.tail} behind them") if case.has(SparseOp.ATTENTION) else (),
        "memory": (
            f"{case.slack} more columns of tables" if case.slack else "",
            f"{case.gap} elements between rows" if case.gap else "",
            "descending pages" if case.backwards else "",
            f"guards on the {case.guard}",
            f"outputs {case.outputs}",
        ),
    }
    lines += [f"{name:<10}{', '.join(filter(None, parts))}" for name, parts in fields.items() if any(parts)]
    if case.past:
        lines.append(f"known     continues after {'; '.join(map(str, case.past))}")
    return "\n".join(lines)


def _geometry(case: SparseCase) -> Iterator[str]:
    geometry = case.geometry
    if case.has(SparseOp.WRITE) or case.has(SparseOp.LOGITS):
        powers = ", scales are powers of two" if geometry.powers else ""
        yield f"indexer of {geometry.index_heads} heads and {geometry.index_dim} dims{powers}"
    if case.has(SparseOp.COMPRESS):
        yield f"keys of {geometry.ratio} tokens, of {geometry.index_dim} dims"
    if case.has(SparseOp.TOP_K) or case.has(SparseOp.TRANSFORM):
        yield f"top {geometry.top_k}{', of packed keys in prefills' if geometry.ragged else ''}"
    if case.has(SparseOp.ATTENTION):
        heads = f"{geometry.query_heads} query heads"
        if geometry.format is KvFormat.HEADS:
            heads += f" over {geometry.kv_heads}"
        second = f", second lists of {geometry.second}" if geometry.second else ""
        flags = ", sinks" * geometry.sinks + ", counts" * geometry.counts
        yield (
            f"attention of {heads}, dims {geometry.dim} and {geometry.value_dim}, {geometry.format}, lists of "
            f"{geometry.top_k}{second}{flags}"
        )
    yield f"pages of {geometry.page_size}"


def _step(step: SparseStep) -> str:
    title = f"{'replayed ' if step.replayed else ''}{step.mode}"
    runs = []
    for (q_len, kv_len), run in groupby(step.requests, key=lambda each: (each.q_len, each.kv_len)):
        count = len(list(run))
        runs.append(f"{f'{count} x ' if count > 1 else ''}(q {q_len}, kv {kv_len})")
    padding = f" [padding: {step.padding}]" if step.padding else ""
    return f"{title}: {', '.join(runs) or 'no requests'}{padding}"
