"""Recurrent state: gated delta rules, Mamba, lightning attention and causal convolutions, on pools of slots."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.trace import FileTracer
from attnfuzz.harness.families.state_judge import compared_state, judge_state
from attnfuzz.harness.family import Edit, Family
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.parts import checked
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.triage.variants import Way
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.kernels.recurrent.native import NATIVE_STATES
from attnfuzz.kernels.recurrent.result import StateResult
from attnfuzz.reference.case_file import case_id
from attnfuzz.reference.recurrent.case import StateCase, StateMode, StateOp, StateStep, StateValues
from attnfuzz.reference.recurrent.edits import EDITS, plain_fields, with_steps
from attnfuzz.reference.recurrent.features import STATE_TABLE
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.plain_states import plain_states
from attnfuzz.strategies.state_space import STATE_SPACE

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class RecurrentFamily(Family[StateCase]):
    """Recurrent state."""

    title = "recurrent state"
    case_type, result_type = StateCase, StateResult
    capability_type = StateCapability
    table = STATE_TABLE
    space = STATE_SPACE
    comparison = "outputs and states compared within bounds, other slots bit for bit"
    persists = True
    backends: tuple[Any, ...] = NATIVE_STATES

    def runs(self, capability: Any) -> bool:
        return isinstance(capability, StateCapability)

    def supports(self, capability: StateCapability) -> str:
        states = "" if capability.op is StateOp.CONV else f", states of {', '.join(capability.state_dtypes)}"
        can = capability
        flags = {"several drafts": can.most_drafts > 1, "graphs": can.replays, "states that move": can.moves}
        others = ", ".join(name for name, held in flags.items() if held)
        words = f"{capability.op}: {', '.join(capability.modes)}.\n{', '.join(capability.dtypes)}{states}"
        return f"{words}; {others}." if others else f"{words}."

    def cases(self, capability: StateCapability, backend: str, lean: Lean) -> "SearchStrategy[StateCase]":
        from attnfuzz.strategies.states import state_cases  # noqa: PLC0415 - jobs alone draw, with Hypothesis

        return state_cases(capability, backend, lean)

    def plain_cases(self, capability: StateCapability, backend: str) -> Iterable[StateCase]:
        return plain_states(capability, backend)

    def outline(self, case: StateCase) -> tuple[str, ...]:
        return ", ".join(case.modes), f"{case.dtype} with states of {case.state_dtype}"

    def first_steps(self, case: StateCase, count: int) -> StateCase:
        return replace(case, steps=case.steps[:count])

    def check(self, result: StateResult) -> None:
        checked(result.out, torch.Tensor, "out")

    def judge(self, case: Any, result: StateResult, terms: JudgingTerms) -> Judgement:
        return judge_state(result, terms)

    def record(self, case: Any, result: StateResult, tracer: FileTracer) -> None:
        tracer.compared(compared_state(result))

    def edits(self, capability: Any) -> tuple[Edit[StateCase], ...]:
        return EDITS

    def plain(self, case: StateCase) -> Iterator[StateCase]:
        return (plainer for plainer in [next(plain_fields(case))] if plainer != case)

    def other_values(self, case: StateCase) -> Iterator[StateCase]:
        return (replace(case, values=values) for values in StateValues if values is not case.values)

    def without_a_mode(self, case: StateCase) -> Iterator[StateCase]:
        for mode in dict.fromkeys(step.mode for step in case.steps):
            yield with_steps(case, tuple(step for step in case.steps if step.mode is not mode))

    def rows(self, case: StateCase) -> int:
        return case.shape.value_heads * sum(step.tokens for step in case.steps)

    def work(self, case: StateCase) -> int:
        shape = case.shape
        return self.rows(case) * shape.key_dim * shape.value_dim

    def moved(self, case: StateCase, to: StateCase, fingerprint: Any) -> Iterator[StateCase]:
        other = replace(case, backend=to.backend)
        yield other
        yield replace(other, dtype=to.dtype, state_dtype=to.state_dtype, shape=to.shape)

    def other_ways(self, case: StateCase, failing_step: int) -> Iterator[Way]:
        for offset in (1, 2):
            yield Way("contents", f"seed {case.seed + offset}", replace(case, seed=case.seed + offset))

    def parts(self, case: StateCase, failing_step: int) -> Iterator[StateCase]:
        last = failing_step if failing_step >= 0 else len(case.steps) - 1
        yield replace(case, steps=case.steps[: last + 1])

    def describe(self, case: StateCase, *, notes: bool = True) -> str:
        del notes
        shape = case.shape
        lines = [f"case {case_id(case)} for {case.backend}"]
        dims = f"{shape.heads} x {shape.key_dim} to {shape.value_heads} x {shape.value_dim}"
        lines.append(f"layer     {case.op}, {dims}, {case.dtype}, states of {case.state_dtype}")
        lines += [f"step {index:<5}{_step_in_words(step)}" for index, step in enumerate(case.steps)]
        words = sorted(each.name for each in STATE_TABLE.features_in(case))
        return "\n".join([*lines, *([f"has       {', '.join(words)}"] if words else [])])

    def traits(self, case: StateCase) -> Sequence[str]:
        words = sorted(each.name for each in STATE_TABLE.features_in(case) if each.clue)
        return (case.op.value, *dict.fromkeys(case.modes), *words)


def _step_in_words(step: StateStep) -> str:
    words = []
    for row in step.rows:
        text = f"lane {row.lane}: {row.tokens}"
        text += "" if row.initial else " of a new request"
        text += f" after {row.accepted} accepted" if step.mode is StateMode.VERIFY else ""
        words.append(text)
    title = f"replayed {step.mode}" if step.replayed else str(step.mode)
    padding = f", {step.padding} padded" if step.padding else ""
    return f"{title}: {'; '.join(words) or 'no requests'}{padding}"


RECURRENT = RecurrentFamily()
