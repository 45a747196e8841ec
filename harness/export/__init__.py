"""Stand-alone scripts that reproduce a failure without attnfuzz, for the maintainers of a kernel."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calls.trace import Untraceable
from attnfuzz.harness.export.carried import CannotExport, NeedsFiles, check_complete, read_files
from attnfuzz.harness.export.runs import runs_of
from attnfuzz.harness.export.script import render_script
from attnfuzz.harness.export.target import Target
from attnfuzz.harness.family import Family, family_of
from attnfuzz.harness.sandbox.check import CannotRun, Runner, shared_runner
from attnfuzz.harness.verdict.failures import DEATHS, Kind, Observation, Verdict
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import Buffer, CallCase, Drawn
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import case_id
from attnfuzz.reference.case_types import tag_of
from attnfuzz.reference.device import Device

__all__ = ["CannotExport", "Exporter", "NeedsFiles", "Target", "export_script"]

_JUDGED_BY_ANSWER = frozenset(
    {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH, Kind.EMPTY_ROW, Kind.UNWRITTEN, Kind.NOT_FINITE, Kind.PADDING_LEAK}
    | {Kind.WRITE_MISMATCH, Kind.STRAY_WRITE}
)


class Exporter:
    """A case that is run once more, to make scripts of it.

    `seen` is its worst failure, None if it passes, in the words of `failed` if it is the same; `calls` are those of its
    last step, None if nothing was launched. `not_run` is the reason why calls for a GPU were not run, "" if they were.
    A case that `failed` and has a `recurrence` may pass this time. Scripts may include code from the user's files in
    `carry`.
    """

    def __init__(
        self,
        case: AnyCase,
        runner: Runner | None = None,
        *,
        failed: Observation | None = None,
        recurrence: Recurrence | None = None,
        carry: Sequence[Path] = (),
    ) -> None:
        """Run the case. Raises CannotExport for a call that can't be serialized, or a file that can't be carried."""
        self.allow(carry)
        runner = runner or shared_runner()
        calls: CallCase | None
        self._first: CallCase | None = None
        self.not_run = ""
        if isinstance(case, CallCase):
            verdict, calls = self._verdict_on(case, runner), case
        else:
            try:
                verdict, self._first, calls = runner.trace_both(case)
            except Untraceable as obstacle:
                raise CannotExport(str(obstacle)) from obstacle
        self._case, self._unsupported = case, verdict.unsupported
        self.seen = _in_words_of(failed, next(iter(verdict.failures), None))
        self._recurrence = recurrence
        # A run that passes has traced the calls of its last step.
        last = len(case.steps) - 1 if isinstance(case, Case) else -1
        self._other_step = not verdict.failures and failed is not None and failed.step not in (-1, last)
        if isinstance(case, Case) and calls is not None and self.seen is not None and self.seen.step > 0:
            calls = _with_earlier(case, calls, self.seen, runner)
        self.calls = _lean(calls, self.seen, runner) if calls is not None and self.seen is not None else calls

    def allow(self, files: Sequence[Path]) -> None:
        """Let scripts include code from these files alone. Raises CannotExport if they need others."""
        self._carry = read_files(files)
        check_complete(self._carry, files)

    def _verdict_on(self, case: CallCase, runner: Runner) -> Verdict:
        """Run calls; without their GPU, none: a script of them shows the failure on another machine."""
        try:
            return runner.verdict(case)
        except CannotRun as error:
            if resolve(case.backend).capability.device is not Device.CUDA:
                raise
            self.not_run = str(error)
            return Verdict()

    def script(self, target: Target = Target.NATIVE) -> str:
        """Return the script for a target.

        Raises:
            CannotExport: nothing was launched, calls alone don't show the failure, or the target lacks a kernel.

        """
        seen, calls, related = self.seen, self.calls, None
        if calls is None:
            raise CannotExport(_why_no_calls(seen, self._unsupported))
        if self._other_step:
            raise CannotExport("it passed this time, and a script has the calls of the last step, after the failure")
        if self._recurrence is not None and self._recurrence.history:
            raise CannotExport("it fails only after other cases, whose calls a script doesn't make: replay it")
        if seen is not None and seen.tier == Tier.T6:
            if not isinstance(self._case, Case):
                raise CannotExport("two runs of it differ, and a script makes the calls of one: replay it")
            related = runs_of(self._case, seen, self._first, calls)
        if seen is not None and seen.kind is Kind.CONTRACT_BROKEN:
            raise CannotExport("its kernels give the right answer: it is the call that breaks its contract")
        if seen is not None and seen.kind in _JUDGED_BY_ANSWER and not _has_answer(calls, seen.place):
            raise CannotExport(_why_no_answer(self._case, calls, seen.place))
        return render_script(case_id(self._case), calls, seen, target, self._recurrence, self._carry, related)

    def best_script(self) -> str:
        """Return the first script that can be made. Raises CannotExport with the reason for the first target."""
        first, *others = self._targets
        try:
            return self.script(first)
        except CannotExport:
            script = next(self.scripts(others), None)
            if script is None:
                raise
            return script

    def scripts(self, targets: Iterable[Target] | None = None) -> Iterator[str]:
        """Yield the scripts that can be made for `targets`, by default for all, FlashInfer's first on a GPU."""
        for target in targets or self._targets:
            with contextlib.suppress(CannotExport):
                yield self.script(target)

    @property
    def default(self) -> Target:
        """The target of a case's own kernels: those of a library on a GPU, or this project's."""
        return self._targets[0]

    @property
    def _targets(self) -> list[Target]:
        on_gpu = resolve(self._case.backend).capability.device is Device.CUDA
        return sorted(Target, key=lambda target: (target is Target.FLASHINFER) != on_gpu)


def _in_words_of(failed: Observation | None, seen: Observation | None) -> Observation | None:
    """Return the failure that was seen now, in the words of the one before, which explain it, if they are the same."""
    if failed is None or seen is None:
        return seen or failed
    same = all(getattr(failed, name) == getattr(seen, name) for name in ("kind", "place", "kernel", "step", "tier"))
    return replace(seen, message=failed.message) if same else seen


def _why_no_calls(seen: Observation | None, unsupported: str | None) -> str:
    """Return why a run has no calls: nothing was launched, or nothing that traces record (`Op.own`)."""
    if seen is not None and seen.kernel:
        return (
            f"{seen.kernel} is code of the backend itself, such as a release's own kernel, whose calls are not recorded"
        )
    return f"no kernel was launched{f' ({unsupported})' if unsupported else ''}"


def _has_answer(calls: CallCase, place: str) -> bool:
    """Return whether the calls have the right result of a place."""
    if compared := _compared(calls):
        return place in compared
    return bool(calls.written) or (calls.answer is not None and (place != "lse" or calls.answer.lse is not None))


def _compared(calls: CallCase) -> set[str]:
    """Return the names of the tensors and lists that calls have right results of."""
    return {each.name for each in calls.expected} | {each.name for each in calls.lists}


def _why_no_answer(case: AnyCase, calls: CallCase, place: str) -> str:
    """Return the reason why calls have no right result of a place."""
    family = family_of(case)
    if type(family).record is Family.record:
        return f"its family, {tag_of(type(case))}, gives scripts no right results (Family.record): replay it"
    if others := _compared(calls):
        return f"its calls have the right result of {', '.join(sorted(others))}, but not of {place}: replay it"
    return f"{calls.backend} changes its kernels' results: their calls alone don't show the failure"


def export_script(case: AnyCase, runner: Runner | None = None, *, target: Target = Target.NATIVE) -> str:
    """Run a case once more, and make a script of its last step's calls. Raises CannotExport."""
    return Exporter(case, runner).script(target)


def _lean(calls: CallCase, seen: Observation, runner: Runner) -> CallCase:
    """Return the calls with normal numbers for contents if they still die alike, else unchanged."""
    if seen.kind not in DEATHS or any(buffer.hole for buffer in calls.buffers):
        return calls
    buffers = tuple(_redrawn(buffer, seed) for seed, buffer in enumerate(calls.buffers))
    redrawn = replace(calls, buffers=buffers, answer=None, written=(), expected=(), lists=())
    if buffers == calls.buffers:
        return calls
    again = next(iter(runner.verdict(redrawn).failures), None)
    same = again is not None and (again.kind, again.kernel, again.place) == (seen.kind, seen.kernel, seen.place)
    return redrawn if same else calls


def _with_earlier(case: Case, calls: CallCase, seen: Observation, runner: Runner) -> CallCase:
    """Return the calls of all steps, if only after the earlier ones those of the last step fail in a fresh worker."""
    if resolve(case.backend).capability.device is Device.CUDA or any(call.on or call.makes for call in calls.calls):
        return calls
    with contextlib.suppress(Untraceable):
        runner.renew()
        if not runner.verdict(calls).failures:
            runner.renew()
            _, _, whole = runner.trace_both(case, whole=True)
            runner.renew()
            if whole is not None and any(each.kind is seen.kind for each in runner.verdict(whole).failures):
                return whole
    return calls


def _redrawn(buffer: Buffer, seed: int) -> Buffer:
    if buffer.bits is None or not buffer.dtype.torch_dtype.is_floating_point:
        return buffer
    return replace(buffer, bits=None, drawn=Drawn(seed=seed))
