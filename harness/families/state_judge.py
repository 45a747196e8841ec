"""Judging a step of a recurrence: outputs and states by bounds, and every other bit of the pool."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log, sqrt

import torch

from attnfuzz.harness.judge.judge import Judgement, with_returned
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.memory.poison import unwritten
from attnfuzz.harness.verdict.failures import Kind, Observation, RowAddress
from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.kernels.interface.compared import ComparedResult, ComparedTensor
from attnfuzz.kernels.recurrent.result import StateResult, TouchedRow
from attnfuzz.reference.noise import ROUNDOFF, SMALLEST_STEP
from attnfuzz.reference.recurrent.case import StateMode, StateOp
from attnfuzz.reference.recurrent.recurrence import UNIFORM, convolve, recur

_FP32 = 2.0**-23

_INDEPENDENT = 2
"""Effective number of independent errors in a row: all of its elements share the roundings of queries and keys."""


@dataclass(frozen=True)
class _Judged:
    """Right numbers with the mean squares of their errors' bounds, and what a kernel has in their place.

    All are [rows, elements]: of a state `slot` the elements of the key of each head, after `token`; of outputs the
    `heads` of each token.
    """

    row: TouchedRow
    place: str
    seen: torch.Tensor
    right: torch.Tensor
    error: torch.Tensor
    token: int
    heads: int
    slot: int = -1


def judge_state(result: StateResult, terms: JudgingTerms) -> Judgement:
    """Judge a step. A row is one head of a token's output, or one head's state for one element of the key."""
    began = time.perf_counter()
    parts = _conv_parts(result) if result.case.op is StateOp.CONV else _recurrent_parts(result)
    asked = time.perf_counter() - began
    margins: dict[str, float] = {}
    found: list[Observation] = []
    failed: set[str] = set()
    rows = sum(part.right.shape[0] for part in parts)
    for part in parts:
        if part.place not in failed:
            seen = next(_of_part(part, result, terms, rows, margins), None)
            if seen is not None:
                failed.add(part.place)
                found.append(with_returned(seen, result.returned) if part.place == "out" else seen)
    if Tier.T0 in terms.tiers:
        found += _exact_pool(result, terms.report)
    return Judgement(tuple(found), margins, rows, asked, time.perf_counter() - began - asked)


def _recurrent_parts(result: StateResult) -> list[_Judged]:
    parts = []
    keeps_all = result.mode is StateMode.VERIFY
    for row in result.rows:
        state = torch.zeros(result.case.state_shape) if row.read is None else result.before[row.read]
        terms = result.values.terms(result.inputs, row.tokens, given=result.given)
        answer = recur(terms, state.double(), result.noise, all_states=keeps_all)
        heads = answer.out.shape[1]
        out = result.out[row.tokens]
        parts.append(_judged(row, "out", (out, answer.out, answer.out_error), 0, heads))
        # The state at the end of a block may take the slot of one that the kernel wrote.
        replaced = {slot for slot, _ in row.committed}
        for token, slot in enumerate(row.written):
            if slot in replaced:
                continue
            last = token if keeps_all else len(terms.value) - 1
            at = token if keeps_all else 0
            numbers = (result.after[slot], answer.states[at], answer.state_errors[at])
            parts.append(_judged(row, "state", numbers, last, result.case.shape.key_dim, slot))
        for slot, tokens in row.committed:
            numbers = (result.after[slot], answer.states[tokens - 1], answer.state_errors[tokens - 1])
            parts.append(_judged(row, "state", numbers, tokens - 1, result.case.shape.key_dim, slot))
    return parts


def _judged(
    row: TouchedRow,
    place: str,
    numbers: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    token: int,
    heads: int,
    slot: int = -1,
) -> _Judged:
    seen, right, error = (each.flatten(0, 1) for each in numbers)
    return _Judged(row, place, seen, right, error, token, heads, slot)


def _conv_parts(result: StateResult) -> list[_Judged]:
    parts, case, width = [], result.case, result.case.shape.width
    for row in result.rows:
        inputs = result.inputs.value[row.tokens, 0].T.to(result.before.dtype)
        first = max(row.accepted - 1, 0) if result.mode is StateMode.VERIFY else 0
        history = torch.zeros(case.shape.value_dim, width - 1, dtype=inputs.dtype)
        if row.read is not None:
            history = result.before[row.read][:, first : first + width - 1]
        out, error = convolve(result.values.taps, torch.cat((history, inputs), 1), result.noise)
        parts.append(_Judged(row, "out", result.out[row.tokens], out.T, error.T, token=0, heads=1))
    return parts


def _of_part(
    part: _Judged, result: StateResult, terms: JudgingTerms, rows: int, margins: dict[str, float]
) -> Iterator[Observation]:
    """Yield the failures of a part, the most exact one first."""
    if not part.right.numel():
        return
    seen = part.seen.double()
    bad = ~torch.isfinite(seen)
    if bad.any():
        if Tier.T0 in terms.tiers:
            never = part.place == "out" and bool(unwritten(part.seen)[bad].all())
            at = int(bad.any(-1).nonzero()[0])
            element = int(bad[at].nonzero()[0])
            text = "was never written: it holds the sentinel" if never else f"is {float(seen[at, element])}"
            kind = Kind.UNWRITTEN if never else Kind.NOT_FINITE
            yield _report(part, result, terms, kind, Tier.T0, at, f"{text}; {_count(bad)}")
        return
    rounding, bound = _bounds(part, rows, terms.alpha)
    off = (seen - part.right).abs()
    ratio = off / bound
    mean = UNIFORM * part.error + UNIFORM * rounding.square()
    spread = (off.square() / mean.clamp(min=1e-300)).mean(-1) / _row_limit(rows, terms.alpha)
    for tier, margin in ((Tier.T1, ratio.amax(-1)), (Tier.T2, spread.sqrt())):
        if tier not in terms.tiers:
            continue
        margins[tier] = max(margins.get(tier, 0.0), float(margin.max()))
        if margin.max() > 1:
            at = int(margin.argmax())
            element = int(ratio[at].argmax())
            text = f"has {float(seen[at, element]):.6g} in element {element}, and {float(part.right[at, element]):.6g} "
            text += f"is right; {_count((margin > 1).unsqueeze(-1))}"
            kind = _kind(part, result, at)
            yield _report(part, result, terms, kind, tier, at, text, float(margin.max()))
            return


def _bounds(part: _Judged, rows: int, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bounds on the last rounding of each element, and on its error (T1)."""
    dtype = part.seen.dtype
    rounding = ROUNDOFF[dtype] * part.right.abs() + SMALLEST_STEP[dtype]
    tail = sqrt(2 * log(2 * sum(part.right.shape) * max(rows, 1) / alpha))
    return rounding, tail * part.error.sqrt() + rounding


def compared_state(result: StateResult) -> ComparedResult:
    """Return a step's outputs and pool beside the right ones, with a bound for each element."""
    seen, result = result, replace(result, out=result.out.cpu(), before=result.before.cpu(), after=result.after.cpu())
    parts = _conv_parts(result) if result.case.op is StateOp.CONV else _recurrent_parts(result)
    rows = sum(part.right.shape[0] for part in parts)
    out, out_bound = result.out.clone(), torch.full(result.out.shape, torch.inf)
    pool, pool_bound = result.before.clone(), torch.zeros(result.before.shape)
    for part in parts:
        _, bound = _bounds(part, rows, ALPHA)
        right, most = (out, out_bound) if part.place == "out" else (pool, pool_bound)
        at = part.row.tokens if part.place == "out" else part.slot
        right[at] = part.right.view(right[at].shape).to(right.dtype)
        # The right numbers are rounded to the dtype of the kernel's, and the bounds to float32.
        bound += (part.right.to(right.dtype).double() - part.right).abs()
        most[at] = ((1 + _FP32) * bound).view(most[at].shape).float()
    for row in result.rows if result.case.op is StateOp.CONV else ():
        for slot, inputs in _conv_states(result, row):
            pool[slot, :, : inputs.shape[1]] = inputs
            pool_bound[slot, :, inputs.shape[1] :] = torch.inf
    for slot in result.free:
        pool_bound[slot] = torch.inf
    return ComparedResult(
        (ComparedTensor("out", seen.out, out, out_bound), ComparedTensor("state", seen.after, pool, pool_bound))
    )


def _row_limit(rows: int, alpha: float) -> float:
    """Return the bound on a row's mean square error over its expectation: the tail of chi-squared."""
    x = log(max(rows, 1) / alpha)
    return 1 + 2 * sqrt(x / _INDEPENDENT) + 2 * x / _INDEPENDENT


def _kind(part: _Judged, result: StateResult, at: int) -> Kind:
    if part.place == "out":
        return Kind.OUTPUT_MISMATCH
    slot = part.slot
    same = bool((result.after[slot].flatten(0, 1)[at] == result.before[slot].flatten(0, 1)[at]).all())
    return Kind.UNWRITTEN if same else Kind.WRITE_MISMATCH


def _count(wrong: torch.Tensor) -> str:
    rows = wrong.any(-1)
    return f"{int(rows.sum())} of {rows.numel()} rows are wrong"


def _report(
    part: _Judged,
    result: StateResult,
    terms: JudgingTerms,
    kind: Kind,
    tier: Tier,
    at: int,
    text: str,
    margin: float | None = None,
) -> Observation:
    row, head = part.row, at // part.heads if part.place == "state" else at % part.heads
    token = part.token if part.place == "state" else at // part.heads
    where = f"{part.place} of request {row.number}, token {token}, head {head},"
    if part.place == "state":
        where = f"the state after token {token} of request {row.number}, head {head}, key element {at % part.heads},"
    read = "no state" if row.read is None else f"the state in slot {row.read}"
    slots = ", ".join(map(str, row.touched))
    message = f"{where} {text}; the request begins with {read}, and writes slots {slots or 'none'}"
    return terms.report(
        kind=kind,
        place=part.place,
        tier=tier,
        margin=margin,
        row=RowAddress(row.number, token, head),
        message=message + _explained(part, result),
    )


def _explained(part: _Judged, result: StateResult) -> str:
    """Return a clause on the initial state with which the output would be right, or "" if there is none."""
    if result.case.op is StateOp.CONV or part.place != "out":
        return ""
    terms = result.values.terms(result.inputs, part.row.tokens, given=result.given)
    others = {"no state": torch.zeros(result.case.state_shape)}
    others |= {f"slot {slot}": state for slot, state in enumerate(result.before) if slot != part.row.read}
    for name, state in others.items():
        if torch.isfinite(state).all():
            answer = recur(terms, state.double(), result.noise)
            off = (part.seen.double() - answer.out.flatten(0, 1)).abs()
            rounding = ROUNDOFF[part.seen.dtype] * answer.out.flatten(0, 1).abs() + SMALLEST_STEP[part.seen.dtype]
            if bool((off <= 8 * answer.out_error.flatten(0, 1).sqrt() + rounding).all()):
                return f"\nThis is the output from the state of {name}."
    return ""


def _exact_pool(result: StateResult, report: Callable[..., Observation]) -> Iterator[Observation]:
    """Yield states that must be exact and are not: a convolution's inputs, and slots of no request."""
    before, after = (_bits(each) for each in (result.before, result.after))
    due = before.clone()
    for row in result.rows:
        for slot in row.touched:
            due[slot] = after[slot]
        for slot, inputs in _conv_states(result, row) if result.case.op is StateOp.CONV else ():
            due[slot, :, : inputs.shape[1]] = _bits(inputs.contiguous())
    for slot in result.free:
        due[slot] = after[slot]
    wrong = due != after
    if not wrong.any():
        return
    slot, *at = wrong.nonzero()[0].tolist()
    owner = next((row for row in result.rows if slot in row.touched), None)
    seen, old = (float(each[(slot, *at)]) for each in (result.after, result.before))
    place = f"element {at} of slot {slot}"
    if owner is not None:
        same = bool((after[slot] == before[slot]).all())
        token = owner.tokens.stop - owner.tokens.start - 1
        message = (
            f"{place} has {seen:.6g} after request {owner.number}; {int(wrong[slot].sum())} of its inputs are wrong"
        )
        kind = Kind.UNWRITTEN if same else Kind.WRITE_MISMATCH
        row_address = RowAddress(owner.number, max(token, 0), 0)
        yield report(kind=kind, place="state", tier=Tier.T0, row=row_address, message=message)
        return
    reader = next((row.number for row in result.rows if row.read == slot), None)
    whose = "of no request of the step" if reader is None else f"that request {reader} reads and must not write"
    count = int(wrong.flatten(1).any(1).sum())
    message = f"{place}, {whose}, changed from {old:.6g} to {seen:.6g}; {count} such slots changed"
    yield report(kind=Kind.STRAY_WRITE, place="state", tier=Tier.T0, message=message)


def _conv_states(result: StateResult, row: TouchedRow) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield a convolution's slots with the inputs that each must begin with after the tokens of a request."""
    width, inputs = result.case.shape.width, result.inputs.value[row.tokens, 0].T.to(result.before.dtype)
    first = max(row.accepted - 1, 0) if result.mode is StateMode.VERIFY else 0
    history = torch.zeros(result.case.shape.value_dim, width - 1, dtype=inputs.dtype)
    if row.read is not None:
        history = result.before[row.read][:, first : first + width - 1]
    whole = torch.cat((history, inputs), 1)
    for slot in row.written:
        yield slot, whole[:, 1:] if result.mode is StateMode.VERIFY else whole[:, whole.shape[1] - (width - 1) :]
    for slot, tokens in row.committed:
        yield slot, whole[:, tokens : tokens + width - 1]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.itemsize])
