"""Roundings of parts that a kernel splits a row's keys into evenly, in rows with exact weights.

A kernel that has fewer rows than processors splits the keys of each into parts of equal size, rounds each part's output
to the output's dtype, and merges them (FlashInfer 0.7.4, PrefillBinarySearchKVChunkSize in attention/scheduler.cuh: any
number of pages; tmp_v of csrc/batch_prefill.cu has the dtype of o). Its merge has 4 to 16 sums, and each part goes
to the next one; they are rounded too, and then merged (cascade.cuh, threadblock_sync_state: v_smem has the dtype of v).
`ErrorBudget` takes these roundings as independent. But values whose sums recur, such as the codes of ValueFamily.PROBE,
make many equal parts, which are rounded alike: of 8,192 keys and more, the error of a right row is up to 3 times its
bound. Runs of equal values (ValueFamily.STAGNANT) make large parts.

Exact weights have no errors, so the output of a part is known to fp32's precision, and with it the error of its
rounding. The kernel's size of parts is unknown: the largest error over all sizes is allowed.
"""

import ctypes
from functools import lru_cache

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.judged_again import once, parts_allowance, row_of, sums_allowance

MOST_PARTS = 512
"""Maximum number of parts of a row: four for each processor of an H200."""

SUMS = (4, 8, 16)
"""Numbers of sums in which FlashInfer merges parts, for head dims of 256 and more, 128, and 64: 128 threads share them,
and a thread has 8 elements of a head, or a 32nd of it.
"""


def element_sums_allowance(budget: ErrorBudget, token: int, head: int, element: int) -> float:
    """Return the allowance for one element's sums, and for their parts, on top of T1's bound and T5's."""
    allowed = sums_allowance(budget, token, head, element)
    return allowed + even_parts_allowance(budget, token, head, element)


def even_parts_allowance(budget: ErrorBudget, token: int, head: int, element: int) -> float:
    """Return the allowance for even parts of one element, beyond that of bounds and `parts_allowance` for parts."""
    if budget.parts < 2 or not budget.exact_weights[token, head].item():
        return 0.0

    def found() -> float:
        at = token, head, element
        counted = budget.output_bound[at] - budget.roundoff * budget.size[at]
        counted += parts_allowance(budget, token, head)[element]
        weights, values = row_of(budget, token, head)
        terms = weights * values[:, element]
        # Heads whose queries are 0 have equal terms over one KV head, and there are many sizes.
        name = "even parts", *(hash(_bytes(each)) for each in (weights, terms))
        if name not in budget.memo:
            budget.memo[name] = even_parts_error(weights, terms, budget.out_dtype)
        error: float = budget.memo[name]
        return max(error - counted.item(), 0.0)

    return once(budget, f"even parts of {element}", token, head, found)


def _bytes(tensor: torch.Tensor) -> bytes:
    whole = tensor.cpu().contiguous()
    return ctypes.string_at(whole.data_ptr(), whole.nbytes)


def even_parts_error(weights: torch.Tensor, terms: torch.Tensor, dtype: torch.dtype) -> float:
    """Return the largest error of rounding the parts of an output, and sums of them, to `dtype`.

    It is the largest over all sizes of parts, and over merges at once or in as many sums as `SUMS` has. `weights` [k]
    are exact, and `terms` [k] are p v of one element; both fp64.
    """
    owner, place, begin, end = _parts(len(terms))
    if not len(owner):
        return 0.0
    splits = int(owner[-1]) + 1
    sums, totals = (torch.cat((each.new_zeros(1), each.cumsum(0))).cpu() for each in (terms, weights))
    part, weight = sums[end] - sums[begin], totals[end] - totals[begin]
    rounded = part + _rounding(part, weight, dtype)
    error = _added(rounded - part, owner, splits)
    largest = error.abs().max()
    for count in SUMS:
        at = owner * count + place % count
        sums = _rounding(_added(rounded, at, splits * count), _added(weight, at, splits * count), dtype)
        largest = largest.maximum((error + sums.view(splits, count).sum(dim=1)).abs().max())
    return largest.item()


def _rounding(total: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the errors of totals whose quotients by their weights are rounded to `dtype`."""
    mean = total / weight.where(weight > 0, torch.inf)
    return weight * (mean.to(dtype).to(torch.float64) - mean)


def _added(numbers: torch.Tensor, at: torch.Tensor, size: int) -> torch.Tensor:
    return numbers.new_zeros(size).index_add_(0, at, numbers)


@lru_cache(maxsize=1)
def _parts(keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the parts of all splits into 2 to `MOST_PARTS`, int64.

    These are the number of the split, that of the part within it, its first key, and the key behind it.
    """
    sizes = torch.arange(max(-(-keys // MOST_PARTS), 1), max(keys, 1))
    counts = (keys + sizes - 1) // sizes
    owner = torch.repeat_interleave(torch.arange(len(sizes)), counts)
    place = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
    begin = place * sizes[owner]
    return owner, place, begin, (begin + sizes[owner]).clamp(max=keys)
