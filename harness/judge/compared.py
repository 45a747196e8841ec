"""Judging results that have their right contents beside them, element by element."""

import time
from collections.abc import Callable, Iterator

import torch

from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.memory.poison import unwritten
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.compared import ComparedLists, ComparedResult, ComparedTensor
from attnfuzz.reference.elements import over_bound
from attnfuzz.reference.sparse.lists import mistake_of_list


def judge_compared(result: ComparedResult, terms: JudgingTerms) -> Judgement:
    """Judge every tensor: by its bits (T0), or by the bounds of its elements (T1). A row is along the last axis.

    Lists are judged by the scores of their entries (T0).
    """
    began = time.perf_counter()
    found, margins, rows = list[Observation](), dict[str, float](), 0
    for each in result.tensors:
        tier = Tier.T0 if each.bound is None else Tier.T1
        if tier not in terms.tiers or not each.seen.numel():
            continue
        rows += each.seen.numel() // (each.seen.shape[-1] if each.seen.ndim else 1)
        off = over_bound(each.seen.cpu(), each.right.cpu(), None if each.bound is None else each.bound.cpu())
        worst = off.max().item()
        if tier is Tier.T1:
            margins[tier] = max(worst, margins.get(tier, 0.0))
        if worst > 1:
            found.append(_wrong(each, off, tier, terms.report))
    for lists in result.lists if Tier.T0 in terms.tiers else ():
        rows += len(lists.seen)
        found += _misselected(lists, terms.report)
    return Judgement(tuple(found), margins, rows, 0.0, time.perf_counter() - began)


def _misselected(lists: ComparedLists, report: Callable[..., Observation]) -> Iterator[Observation]:
    """Yield the observation of the first wrong list."""
    names = lists.names or (None,) * len(lists.scores)
    rows = zip(lists.seen.cpu(), lists.scores, names, strict=True)
    mistakes = [mistake_of_list(entries, scores.cpu(), of_row) for entries, scores, of_row in rows]
    wrong = [row for row, mistake in enumerate(mistakes) if mistake]
    if wrong:
        message = f"{lists.name}, row {wrong[0]}: {mistakes[wrong[0]]}; {len(wrong)} of {len(mistakes)} rows are wrong"
        yield report(kind=Kind.OUTPUT_MISMATCH, place=lists.name, tier=Tier.T0, message=message)


def _wrong(tensor: ComparedTensor, off: torch.Tensor, tier: Tier, report: Callable[..., Observation]) -> Observation:
    """Return the observation of a tensor's worst element."""
    wrong, at = off > 1, torch.unravel_index(off.argmax(), off.shape)
    seen, right = tensor.seen[at], tensor.right[at]
    exact, margin = tier is Tier.T0, off[at].item()
    kind = Kind.WRITE_MISMATCH if exact else Kind.OUTPUT_MISMATCH
    if bool(unwritten(tensor.seen[wrong]).all()):
        kind = Kind.UNWRITTEN
    elif not exact and not bool(seen.isfinite()) and bool(right.isfinite()):
        kind = Kind.NOT_FINITE
    held = "what it held before" if kind is Kind.UNWRITTEN else _number(seen)
    times = "" if exact or kind is not Kind.OUTPUT_MISMATCH else f", {margin:.3g} times the allowed error"
    place = f"{tensor.name}[{', '.join(str(int(index)) for index in at)}]"
    message = f"{place} holds {held} instead of {_number(right)}{times}"
    return report(
        kind=kind,
        place=tensor.name,
        tier=tier,
        margin=None if exact else margin,
        message=f"{message}; {int(wrong.sum())} of {wrong.numel()} elements are wrong",
    )


def _number(element: torch.Tensor) -> str:
    """Return a number in as many digits as fp32 has."""
    return f"{element.item():.9g}" if element.is_floating_point() else str(element.item())
