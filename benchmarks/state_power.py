"""The smallest mistakes that the bounds of elements (T1) find in prompts of recurrent layers.

    RESULTS=docs/results/sensitivity.md python benchmarks/state_power.py [--tokens 64 ...] [--seeds 2]

A right kernel runs a prompt, and is compared with a reference that is wrong in a part of its heads, by a share of its
own in each: all logarithms of decays, all gates (beta of a delta rule, the step of Mamba), or the gate of one token in
the middle, of which a share of 1 is a missing token. Prints the smallest power of two from which on all are found with
each seed, in an output or in the state.
"""

from dataclasses import replace
from unittest import mock

import click
import torch
from measurement import show

from attnfuzz.harness.families import recurrent, state_judge
from attnfuzz.harness.inside.execute import Execution, backend_of
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.recurrent.result import StateResult
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import StateCase, StateMode, StateOp, StateRow, StateShape, StateStep
from attnfuzz.reference.recurrent.recurrence import StateTerms
from attnfuzz.reference.recurrent.values import CaseValues

_OPS = {
    "native:gated_delta_rule": StateOp.GATED_DELTA,
    "native:kda": StateOp.KDA,
    "native:selective_scan": StateOp.SSM,
}
_MISTAKES = ("decays", "gates", "gate of one token")
_SHARES = 2.0 ** -torch.arange(24, dtype=torch.float64)
_HEADS = len(_MISTAKES) * len(_SHARES)


@click.command(help=__doc__)
@click.option("--tokens", "lengths", type=int, multiple=True, default=(64, 1024, 8192), show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=2, show_default=True, help="Cases of each entry.")
def main(lengths: tuple[int, ...], seeds: int) -> None:
    """Measure, and print a table for each length."""
    torch.set_num_threads(1)
    for length in lengths:
        rows = [
            (name, str(dtype), *smallest(name, dtype, length, seeds))
            for name in _OPS
            for dtype in (DType.FLOAT32, DType.BFLOAT16)
        ]
        columns = ("kernel", "dtype", *_MISTAKES)
        show(f"The smallest mistakes found in recurrences of {length:,} tokens", columns, rows)


def smallest(name: str, dtype: DType, length: int, seeds: int) -> list[str]:
    """Return the smallest share of each mistake that is found with all seeds, as are all larger ones."""
    found = torch.stack([found_in(case_of(name, dtype, length, seed)) for seed in range(seeds)]).all(0)
    counts = found.view(len(_MISTAKES), -1).long().cumprod(-1).sum(-1).tolist()
    return [f"2^-{count - 1}" if count else "none" for count in counts]


def found_in(case: StateCase) -> torch.Tensor:
    """Return the heads of a case whose mistakes are found, bool [heads]."""
    found = torch.zeros(_HEADS, dtype=torch.bool)
    right = CaseValues.terms

    def judge(result: StateResult, terms: JudgingTerms) -> Judgement:
        with mock.patch.object(CaseValues, "terms", lambda *given, **named: mistaken(right(*given, **named))):
            parts = state_judge._recurrent_parts(result)  # noqa: SLF001 - the judge reports the worst head alone
        rows = sum(len(part.right) for part in parts)
        for part in parts:
            _, bound = state_judge._bounds(part, rows, terms.alpha)  # noqa: SLF001 - the same
            wrong = ((part.seen.double() - part.right).abs() > bound).any(-1)
            found.logical_or_(wrong.view(-1, _HEADS).any(0) if part.place == "out" else wrong.view(_HEADS, -1).any(1))
        return Judgement((), {}, 0, 0.0, 0.0)

    with mock.patch.object(recurrent, "judge_state", judge):
        Execution(Task(case=case, backend=case.backend), lambda _: None, backend=backend_of(case.backend)).run()
    return found


def mistaken(terms: StateTerms) -> StateTerms:
    """Return the terms with a mistake in each head."""
    of_decays, of_gates, of_one = (torch.zeros(_HEADS, dtype=torch.float64) for _ in _MISTAKES)
    for at, shares in enumerate((of_decays, of_gates, of_one)):
        shares[at * len(_SHARES) : (at + 1) * len(_SHARES)] = _SHARES
    factor = (1 - of_gates).repeat(len(terms.value), 1)
    factor[len(factor) // 2] -= of_one
    changed = {"log_decay": terms.log_decay * (1 + of_decays)[:, None]}
    if terms.beta is None:
        return replace(terms, value=terms.value * factor[..., None], **changed)
    return replace(terms, beta=terms.beta * factor, **changed)


def case_of(name: str, dtype: DType, length: int, seed: int) -> StateCase:
    """Return a prompt of one request, with states of the dtype of the inputs."""
    return StateCase(
        backend=name,
        op=_OPS[name],
        shape=StateShape(heads=_HEADS, value_heads=_HEADS, key_dim=16, value_dim=16),
        steps=(StateStep(mode=StateMode.PREFILL, rows=(StateRow(lane=0, tokens=length, initial=False),)),),
        dtype=dtype,
        state_dtype=dtype,
        normed=_OPS[name].is_delta,
        seed=seed,
    )


if __name__ == "__main__":
    main()
