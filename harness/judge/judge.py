"""The verdict on one step's output: the reference is asked, and every tier is heard."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import log

import torch

from attnfuzz.harness.failures import Kind, Observation
from attnfuzz.harness.judge import exact
from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.exact import Report
from attnfuzz.harness.judge.lse_bound import lse_bound
from attnfuzz.harness.judge.real_rows import RealRows
from attnfuzz.harness.judge.row_error import row_error
from attnfuzz.kernels.backend import Output
from attnfuzz.reference.attention import attend
from attnfuzz.reference.contract import Contract, Holds, LseBase
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.problem import Problem

ALPHA = 1e-9
"""The probability that a correct kernel's output is called wrong, by all tiers together."""

_STATISTICAL_TIERS = 3


@dataclass(frozen=True)
class Judgement:
    """What judging one output gave. `margins` has each tier's largest margin; `rows` counts (token, head) rows."""

    observations: tuple[Observation, ...]
    margins: dict[str, float]
    rows: int
    reference_seconds: float
    judge_seconds: float


def judge(
    output: Output,
    *,
    geometry: Geometry,
    contract: Contract,
    noise: NoiseModel,
    step: int,
    mode: str,
    kernel: str,
    alpha: float = ALPHA,
    strict: bool = False,
) -> Judgement:
    """Judge `output` against fp64 attention over what it attended to, causally and with the geometry's window.

    With `strict`, what breaks only the strict contract is observed too, marked as a gap.
    """
    began = time.perf_counter()
    report = partial(Observation, step=step, mode=mode, kernel=kernel)
    rows = RealRows(output.attended, output.out.shape[0], output.out.device)
    wrong = exact.misshapen(output, rows, geometry, report)
    if wrong is not None:
        return Judgement((wrong,), {}, 0, 0.0, time.perf_counter() - began)
    problem = _problem(output, rows, geometry)
    asked = time.perf_counter()
    answer = attend(problem, moments=True)
    answered = time.perf_counter()
    budget = ErrorBudget(problem, answer, noise, output.out.dtype, output.roundings, alpha / _STATISTICAL_TIERS)
    verdict = _Verdict(output, rows, budget, contract, report)
    observations = [*verdict.exact(), *verdict.statistical()]
    if strict:
        known = {(observation.kind, observation.place) for observation in observations}
        best = _Verdict(output, rows, budget, contract.strict(), partial(report, gap=True))
        observations += [gap for gap in best.exact() if (gap.kind, gap.place) not in known]
    reference_seconds = answered - asked
    judge_seconds = time.perf_counter() - began - reference_seconds
    count = rows.tokens * output.out.shape[1]
    return Judgement(tuple(observations), verdict.margins, count, reference_seconds, judge_seconds)


def _problem(output: Output, rows: RealRows, geometry: Geometry) -> Problem:
    attended = output.attended
    _, heads, dim = output.out.shape
    if not attended:
        nothing = output.out.new_empty((0, heads, 1))
        query, key, value = nothing, nothing[:, : geometry.kv_heads], output.out.new_empty((0, geometry.kv_heads, dim))
    elif len(attended) == 1:
        query, key, value = attended[0].query, attended[0].key, attended[0].value
    else:
        query = torch.cat([entry.query for entry in attended])
        key = torch.cat([entry.key for entry in attended])
        value = torch.cat([entry.value for entry in attended])
    return Problem(
        query,
        key,
        value,
        rows.q_lens,
        rows.kv_lens,
        output.bmm1_scale,
        output.bmm2_scale,
        window_left=geometry.window_left,
        sinks=output.sinks,
        soft_cap=geometry.soft_cap,
    )


class _Verdict:
    """One output beside its answer: out [T, Hq, Dv] and lse [T, Hq] of the real rows."""

    def __init__(self, output: Output, rows: RealRows, budget: ErrorBudget, contract: Contract, report: Report) -> None:
        self._rows = rows
        self._budget = budget
        self._answer = budget.answer
        self._report = report
        self._contract = contract
        self._out = rows.real(output.out)
        self._padded = rows.padded(output.out)
        self._lse = rows.real(output.lse) if output.lse is not None and contract.lse else None
        self._sees = self._answer.visible > 0
        self.margins: dict[str, float] = {}

    def exact(self) -> list[Observation]:
        """T0."""
        rows, sees, report, contract = self._rows, self._sees, self._report, self._contract
        observations = [*exact.not_numbers(self._out, "out", rows, sees, report)]
        if self._lse is not None:
            observations += exact.not_numbers(self._lse, "lse", rows, sees, report)
        empty = exact.empty_rows(self._out, self._lse, self._answer.lse, rows, sees, contract, report)
        if empty is not None:
            observations.append(empty)
        return [*observations, *exact.padded_rows(self._padded, contract, report)]

    def statistical(self) -> Iterator[Observation]:
        """T1 and, only if that passes, T2; then T4."""
        answer = self._answer
        if not answer.out.numel():
            return
        difference = self._out.to(torch.float64).sub_(answer.out)
        if exact.all_finite(difference) and bool(self._sees.all()):
            error = difference
        else:
            error = torch.where(torch.isfinite(difference) & self._sees.view(-1, 1, 1), difference, 0.0)
        ratio = error.abs().div_(element_bound(self._budget))
        largest = ratio.max().item()
        self.margins["T1"] = largest
        if largest > 1:
            yield self._wrong_elements(ratio, largest)
        else:
            yield from self._wrong_rows(error)
        if self._lse is not None:
            yield from self._wrong_lses(self._lse)

    def _wrong_elements(self, ratio: torch.Tensor, largest: float) -> Observation:
        heads, dim = ratio.shape[1:]
        row, element = divmod(int(ratio.argmax()), dim)
        token, head = divmod(row, heads)
        seen, expected = self._out[token, head, element].item(), self._answer.out[token, head, element].item()
        wrong = ratio.amax(dim=-1) > 1
        return self._report(
            kind=Kind.OUTPUT_MISMATCH,
            place="out",
            tier="T1",
            margin=largest,
            message=f"{self._rows.name(token, head)}, element {element}: {seen:.6g} instead of {expected:.6g}, "
            f"{largest:.3g} times the allowed error; {self._count(wrong)}",
        )

    def _wrong_rows(self, error: torch.Tensor) -> Iterator[Observation]:
        found = row_error(self._budget, error)
        self.margins["T2"] = found.margin
        if not found.wrong:
            return
        token, head, margin = found.wrong[0]
        rms = error[token, head].square().mean().sqrt().item()
        size = self._answer.out[token, head].square().mean().sqrt().item()
        yield self._report(
            kind=Kind.OUTPUT_MISMATCH,
            place="out",
            tier="T2",
            margin=margin,
            message=f"{self._rows.name(token, head)}: root mean square error {rms:.3g} of an output of {size:.3g}, its "
            f"square {margin:.3g} times the allowed one; {len(found.wrong)} of {self._total()} rows are wrong",
        )

    def _wrong_lses(self, raw: torch.Tensor) -> Iterator[Observation]:
        seen, expected = raw.to(torch.float64), self._answer.lse
        comparable = torch.isfinite(seen) & torch.isfinite(expected)
        if self._contract.empty_rows is not Holds.ZERO:
            comparable &= self._sees.unsqueeze(-1)
        base = self._contract.lse
        bound = lse_bound(self._budget)
        unit = log(2.0) if base is LseBase.TWO else 1.0
        other = 1.0 if base is LseBase.TWO else log(2.0)
        ratio = torch.where(comparable, (seen * unit - expected).abs() / bound, 0.0)
        largest = ratio.max().item()
        self.margins["T4"] = largest
        if largest <= 1:
            return
        token, head = divmod(int(ratio.argmax()), ratio.shape[1])
        message = (
            f"{self._rows.name(token, head)}: lse {raw[token, head].item():.8g} instead of "
            f"{expected[token, head].item() / unit:.8g} (base {base}), {largest:.3g} times the allowed error; "
            f"{self._count(ratio > 1)}"
        )
        in_other_base = torch.where(comparable, (seen * other - expected).abs() / bound, 0.0)
        if in_other_base.max().item() <= 1:
            message += f"; all are right in base {'e' if base is LseBase.TWO else '2'}"
        yield self._report(kind=Kind.LSE_MISMATCH, place="lse", tier="T4", margin=largest, message=message)

    def _count(self, wrong: torch.Tensor) -> str:
        return f"{int(wrong.sum())} of {self._total()} rows are wrong"

    def _total(self) -> int:
        return int(self._sees.sum()) * self._answer.lse.shape[1]
