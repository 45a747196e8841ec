"""Evidence from running the calls of a failing step by themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from msgspec.structs import replace

from attnfuzz.harness.backends import registry
from attnfuzz.harness.calls.asked import NamesNothing, NotJudgeable, asked, parts_of
from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.calls.object_calls import prepares
from attnfuzz.harness.calls.trace import Hollow, Untraceable
from attnfuzz.harness.memory.poison import sentinel
from attnfuzz.harness.sandbox.check import why_not
from attnfuzz.harness.triage.differences import Difference, differences
from attnfuzz.harness.triage.repeats import Tried, tried
from attnfuzz.harness.triage.result import VariantOutcome
from attnfuzz.harness.triage.variants import cut
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.wording import left_unjudged
from attnfuzz.harness.workers.supervisor import HandlerError
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.meaning import Breach, Role
from attnfuzz.kernels.meaning.known import entry_points
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import REPLAY, Call, CallCase, View, content_of, named_views, pack
from attnfuzz.reference.case import Case

BETWEEN = frozenset({"merge_state_in_place", "merge_state", "fixup_zero_kv_rows", "gather_rows", "put_rows"})
"""Calls that compute no attention: they move, merge and repair inputs and results of attention calls."""

_OUTSIDE = "padded rows"
"""The place of output rows that belong to no request of the call, which need not be written."""


@dataclass(frozen=True)
class BrokenDuty:
    """A breach of a precondition, and the call that breaks it."""

    call: int
    breach: Breach


@dataclass(frozen=True)
class JudgedCall:
    """A call judged by its own arguments; `failure` is set if it contradicts them."""

    call: int
    failure: Observation | None
    case: CallCase


@dataclass(frozen=True)
class CallEvidence:
    """Evidence on the failing step as literal calls, if these could be traced.

    `alone` is the outcome of the calls by themselves. `breaches` are the preconditions that they break, by call;
    `inherited` are those caused by a workspace that calls of earlier steps left. `asked` has each attention call judged
    by its own arguments, `elsewhere` the outcomes on other kernels, by backend, and `obstacles` the checks that were
    impossible.
    """

    calls: CallCase | None = None
    alone: VariantOutcome = field(default_factory=VariantOutcome)
    breaches: tuple[BrokenDuty, ...] = ()
    inherited: tuple[BrokenDuty, ...] = ()
    asked: tuple[JudgedCall, ...] = ()
    elsewhere: dict[str, VariantOutcome] = field(default_factory=dict)
    obstacles: tuple[str, ...] = ()

    @property
    def wrong(self) -> JudgedCall | None:
        """The first call that contradicts its arguments."""
        return next((each for each in self.asked if each.failure is not None), None)

    @property
    def judged(self) -> bool:
        """Whether the attention calls were judged, and the result of each agrees with its arguments."""
        return bool(self.asked) and self.wrong is None

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Differences between the only attention call's arguments and the step."""
        if self.calls is None or len(self.asked) != 1:
            return ()
        return tuple(differences(self.asked[0].case, self.calls))


def collect(case: AnyCase, runner: Tried, tries: int = 1) -> CallEvidence:
    """Collect evidence on a case whose last step fails.

    A flaky case is run up to `tries` times: one failure is enough.
    """
    if isinstance(case, CallCase):
        calls: CallCase | None = case
    else:
        try:
            kernel, calls = _traced(case, runner, tries)
        except Hollow as obstacle:
            # They can't be run by themselves, but their arguments are known.
            found = tuple(breaches(obstacle.calls))
            return CallEvidence(calls=obstacle.calls, breaches=found, obstacles=(str(obstacle),))
        except Untraceable as obstacle:
            return CallEvidence(obstacles=(str(obstacle),))
    if calls is None:
        own = f"{kernel} is code of the backend itself, whose calls are not recorded"
        return CallEvidence(obstacles=(own if kernel else "it failed before any kernel was launched",))
    backend = registry.resolve(case.backend)
    alone = VariantOutcome.of(*tried(calls, runner, tries))
    broken, reads = list(breaches(calls)), [BrokenDuty(*read) for read in reads_of_unwritten_rows(calls)]
    inherited = _inherited(case, calls, broken, runner)
    judged, unwritten, obstacles = _asked(calls, runner, backend, tries)
    return CallEvidence(
        calls=calls,
        alone=alone,
        breaches=(*(each for each in broken if each not in inherited), *reads, *unwritten),
        inherited=inherited,
        asked=tuple(judged),
        elsewhere={
            name: VariantOutcome.of(*tried(replace(calls, backend=name), runner, 1)) for name in other_kernels(calls)
        },
        obstacles=tuple(obstacles),
    )


def _traced(case: AnyCase, runner: Tried, tries: int) -> tuple[str, CallCase | None]:
    """Return the kernel that failed and the calls of the first failing run, or of the last run."""
    for _ in range(tries):
        verdict, calls = runner.trace(case)
        if verdict.failures:
            return verdict.failures[0].kernel, calls
    return "", calls


def breaches(calls: CallCase) -> Iterator[BrokenDuty]:
    """Yield the breaches of each call by itself."""
    for index, call in enumerate(calls.calls):
        entry = entry_points().get(call.op)
        if entry is not None:
            for breach in entry.breaches(literal_arguments(calls, index)):
                yield BrokenDuty(index, breach)


def _inherited(case: AnyCase, calls: CallCase, own: Sequence[BrokenDuty], runner: Tried) -> tuple[BrokenDuty, ...]:
    """Return the breaches that vanish with a zeroed workspace, if calls of an earlier step spoil their workspace."""
    of_contents = [broken for broken in own if broken.breach not in _on_zeros(calls, broken.call)]
    if not of_contents or not isinstance(case, Case):
        return ()
    earlier = [index for index, step in enumerate(case.steps[:-1]) if step.tokens]
    spoilt = any(_spoils_its_workspace(cut(case, index), runner) for index in earlier)
    return tuple(of_contents) if spoilt else ()


def _spoils_its_workspace(case: Case, runner: Tried) -> bool:
    """Return whether the calls of the last step, which pass and break nothing, fail when made twice."""
    verdict, calls = runner.trace(case)
    if calls is None or verdict.failures or any(breaches(calls)) or any(reads_of_unwritten_rows(calls)):
        return False
    return bool(runner.verdict(_twice(calls)).failures)


def _twice(calls: CallCase) -> CallCase:
    """Return the calls made twice in the same workspace, with fresh outputs."""
    outputs = tuple(
        replace(buffer, bits=pack(sentinel(buffer.dtype.torch_dtype).content(buffer.size * buffer.dtype.itemsize)))
        for buffer in calls.buffers
        if content_of(buffer) is None
    )
    first, *others = calls.calls
    return replace(calls, calls=(*calls.calls, replace(first, writes=(*first.writes, *outputs)), *others))


def _on_zeros(calls: CallCase, index: int) -> tuple[Breach, ...]:
    """Return the breaches of a call with a zeroed workspace."""
    entry, arguments = entry_points()[calls.calls[index].op], literal_arguments(calls, index)
    try:
        workspaces = [each.name for each in entry.parameters(arguments) if each.role is Role.WORKSPACE]
    except ValueError:
        return entry.breaches(arguments)
    return entry.breaches({**arguments, **{name: torch.zeros_like(arguments[name]) for name in workspaces}})


def _asked(
    calls: CallCase, runner: Tried, backend: Backend, tries: int
) -> tuple[list[JudgedCall], list[BrokenDuty], list[str]]:
    """Judge attention calls by their arguments, up to the first wrong one.

    Returns the judged calls, the broken preconditions, and obstacles.
    """
    judged: list[JudgedCall] = []
    unwritten: list[BrokenDuty] = []
    obstacles: list[str] = []
    for index, call in enumerate(calls.calls):
        if prepares(call) or (call.graph and call.op != REPLAY):
            # It computes nothing yet.
            continue
        for part in range(parts_of(calls, index)):
            try:
                judged.append(_judged(calls, index, part, runner, backend, tries))
            except NamesNothing as broken:
                unwritten.append(BrokenDuty(index, broken.breach))
            except (NotJudgeable, HandlerError) as reason:
                if call.op not in BETWEEN:
                    why = str(reason).splitlines()[-1]
                    obstacles.append(f"call {index} ({call.op}) can't be judged: {why}")
        if any(each.failure is not None for each in judged):
            break
    return judged, unwritten, obstacles


def _judged(calls: CallCase, index: int, part: int, runner: Tried, backend: Backend, tries: int) -> JudgedCall:
    """Judge one part of a call by its arguments. Raises NotJudgeable."""
    case = asked(calls, index, backend.contract, part=part)
    verdicts = [
        replace(verdict, observations=tuple(each for each in verdict.observations if each.place != _OUTSIDE))
        for verdict in tried(case, runner, tries)
    ]
    outcome = VariantOutcome.of(*verdicts)
    if outcome.unanswered and outcome.failure is None:
        raise NotJudgeable(left_unjudged(outcome.unanswered))
    return JudgedCall(index, outcome.failure, case)


def other_kernels(calls: CallCase) -> Sequence[str]:
    """Return backends with other implementations of the same calls: the fixed one, and the native kernels."""
    own = registry.resolve(calls.backend).ops
    names = dict.fromkeys((registry.fixed(calls.backend), *registry.builtin()))
    found: list[str] = []
    for name in names:
        backend = registry.resolve(name)
        if why_not(backend, calls) is not None or backend.missing() is not None:
            continue
        functions = {call.op: backend.ops[call.op].function for call in calls.calls if call.op != REPLAY}
        known = [own, *(registry.resolve(each).ops for each in found)]
        # Compared by equality, because a bound method is a new object each time.
        if all(any(functions[op] != ops[op].function for op in functions) for ops in known):
            found.append(name)
    return found


_SOURCE = 'FlashInfer docstring of trtllm_ragged_attention_deepseek: "The default assumes all rows are active"'
_RAGGED = "trtllm_ragged_attention_deepseek"
_OVERWRITE = frozenset({"fixup_zero_kv_rows", _RAGGED})
_MERGES = frozenset({"merge_state_in_place", "merge_state"})


def reads_of_unwritten_rows(calls: CallCase) -> Iterator[tuple[int, Breach]]:
    """Yield the merges, by index, that read rows left unwritten by a ragged call, and not written since.

    A write to such an output in between, or a repair, is assumed to cover these rows.
    """
    for first, call in enumerate(calls.calls):
        idle = _idle_rows(calls, first) if call.op == _RAGGED else {}
        out = call.arguments.get("out")
        if not idle or not isinstance(out, View):
            continue
        for index in range(first + 1, len(calls.calls)):
            later = calls.calls[index]
            written = any(write.name == out.buffer for write in later.writes)
            if written or (later.op in _OVERWRITE and _takes(later, out)):
                break
            read = _read(calls, index, idle) if later.op in _MERGES and _takes(later, out) else {}
            if read:
                request, row = next(iter(read.items()))
                text = (
                    f"call {first} ({call.op}) leaves row {row} of its output unwritten, since request {request} has "
                    f"no keys, and call {index} ({later.op}) reads it: the result depends on the old contents of out"
                )
                yield index, Breach(("out", "seq_lens"), text, _SOURCE, request)
                break


def _read(calls: CallCase, index: int, idle: dict[int, int]) -> dict[int, int]:
    """Return the idle rows that a merge does not mask out."""
    mask = literal_arguments(calls, index).get("mask")
    return {request: row for request, row in idle.items() if mask is None or bool(mask[row])}


def _idle_rows(calls: CallCase, index: int) -> dict[int, int]:
    """Return the first row of each request that has queries and no keys, if the call leaves them unwritten."""
    arguments = literal_arguments(calls, index)
    entry = entry_points()[_RAGGED]
    if not entry.leaves_empty_rows(arguments):
        return {}
    try:
        spans = entry.spans(arguments)
    except ValueError:
        return {}
    return {n: span.first_row for n, span in enumerate(spans) if span.inside and span.q_len > 0 and not span.kv_len}


def _takes(call: Call, out: View) -> bool:
    return any(view.buffer == out.buffer for _, view in named_views(call.arguments))
