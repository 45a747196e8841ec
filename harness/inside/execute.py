"""Running a case: each step on guarded memory, judged right after it.

If a case with a relation passes, its related case is run in separate memory, and the two are compared.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace as replaced
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TextIO

import msgspec
import torch
from msgspec.structs import replace

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.engines import engines
from attnfuzz.harness.calls.trace import FileTracer
from attnfuzz.harness.family import family_of
from attnfuzz.harness.inside.forwards import Account, Forwards, JudgeStep, judging, raised
from attnfuzz.harness.inside.launcher import Launched
from attnfuzz.harness.inside.places import place_of
from attnfuzz.harness.inside.plan_digest import PlanDigest
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.parts import checked
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.tiers import ALL_TIERS, Tier
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.building.library_cache import BuildFailed
from attnfuzz.kernels.interface.backend import Backend, Bench, Session, in_inference_mode
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_types import decode_any
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.related import Related
from attnfuzz.reference.user_error import UserError


def warm() -> None:
    """Load, before workers are forked, everything that all need and that starts no thread."""
    torch.set_num_threads(1)
    # Scanning installed packages takes 50 ms, which should not be part of each worker's first case.
    engines()
    torch.nn.functional.softmax(torch.zeros(2, 2, dtype=torch.float64) @ torch.ones(2, 2, dtype=torch.float64), dim=-1)
    for backend in registry.builtin().values():
        # GPU backends can't be loaded before the fork.
        if backend.capability.device is Device.CPU and backend.missing() is None:
            # A case of this backend reports it; other backends' cases must still run.
            with contextlib.suppress(BuildFailed):
                backend.prepare(lambda _: None)


_Run = Callable[[Task, Callable[[bytes], None]], Verdict]
"""Runs a task. The function writes an entry into the journal."""


def handle(request: bytes, journal: Journal, explained: _Run | None = None, watched: _Run | None = None) -> bytes:
    """Answer an encoded Task with an encoded Verdict, by `explained` or `watched` if the task asks for it."""
    task = msgspec.json.decode(request, type=Task, dec_hook=decode_any)
    try:
        backend = backend_of(task.backend)
    except UserError:
        raise
    except BaseException as error:  # noqa: BLE001 - code of the backend, as in a step
        return msgspec.json.encode(Verdict(observations=(raised(error),)))
    if task.explain and explained is not None:
        return msgspec.json.encode(explained(task, journal.write))
    if task.watch is not None and watched is not None:
        return msgspec.json.encode(watched(task, journal.write))
    with contextlib.nullcontext() if task.trace is None else Path(task.trace).open("w") as file:
        return msgspec.json.encode(Execution(task, journal.write, file, backend=backend).run())


@cache
def backend_of(name: str) -> Backend:
    """Load a backend and prepare it in this process. On a GPU, also load everything its cases would load later."""
    backend = registry.load(name)
    backend.prepare(lambda _: None)
    if backend.capability.device is Device.CUDA:
        from attnfuzz.harness.inside.cuda_worker import load_needs  # noqa: PLC0415 - its imports are for GPUs alone

        load_needs(backend)
    return backend


Look = Callable[[int, Judgement, Sequence[Launched]], None]


class Execution:
    """One run of one case, on guarded memory unless `memory` is given. `write` puts an entry into the journal.

    The task's backend runs it, or a `backend` without a registered name. `place` is the device it runs on. `look` gets
    each step's index, judgement and launches while their memory still exists, `digest` each launch and result.
    """

    def __init__(
        self,
        task: Task,
        write: Callable[[bytes], None],
        trace: TextIO | None = None,
        memory: PlacedMemory | None = None,
        backend: Backend | None = None,
        look: Look | None = None,
        digest: PlanDigest | None = None,
    ) -> None:
        case = task.case
        self._digest = digest
        self._case, self._strict, self._alpha, self._look = case, task.strict, task.alpha, look
        self._tiers = ALL_TIERS.difference(task.without)
        self._backend = backend or backend_of(task.backend)
        place = place_of(self._backend.capability.device)
        memory = place.memory(case.guard, case.outputs) if memory is None else memory
        tracer = None if trace is None else FileTracer(trace, memory, case.outputs, whole=task.whole)
        self._launcher = place.launcher(memory, write, tracer or digest)
        self._launcher.launched = None if look is None else []
        if case.dirty:
            self._launcher.soil = place.soil
        self._bench = Bench(memory, self._launcher, place.device)
        self._account = Account()
        self._forwards = Forwards(place, memory, self._launcher, self._account, write, tracer, self._terms)
        self._contract: Contract
        self._noise: NoiseModel | None
        # Each step's baseline for a related run.
        self._kept: dict[int, Any] = {}

    def run(self) -> Verdict:
        """Run the steps up to the first that fails, then those of the related case."""
        account, start = self._account, time.perf_counter()
        with torch.inference_mode(in_inference_mode(self._backend)), self._forwards:
            self._run_steps(self._case, self._judge)
            # Another run would differ from wrong numbers, too. Nothing is kept of writes, which are exact.
            if self._related is not None and self._kept and not account.failed and not account.passed:
                self._run_related(self._related)
        # The remaining time is drawing values, planning and placing tensors.
        account.seconds["place"] = time.perf_counter() - start - sum(account.seconds.values())
        return account.verdict()

    @cached_property
    def _related(self) -> Related | None:
        """The second run, if the case has one and it is to be compared."""
        return family_of(self._case).related(self._case) if Tier.T6 in self._tiers else None

    def _run_related(self, other: Related) -> None:
        """Run the related case and compare. Messages of its failures name the related run."""
        account = self._account
        before = len(account.observations)
        firsts = {index: first for first, index in enumerate(other.steps) if index is not None}

        def judge_step(result: object, terms: JudgingTerms) -> None:
            if self._digest is not None:
                self._digest.result(result)
            start, first = time.perf_counter(), firsts[terms.step]
            if first not in self._kept:
                # No evidence of that step's rows was left.
                return
            compare = torch.inference_mode()(judging(result, self._case).compare)
            comparison = compare(self._kept[first], result, other, replaced(terms, step=first))
            account.observations += comparison.observations
            if comparison.margin is not None:
                account.see_margin(Tier.T6, comparison.margin)
            account.seconds["judge"] += time.perf_counter() - start

        self._launcher.run = f", in the related run ({other.relation.words})"
        self._run_steps(other.case, judge_step)
        account.observations[before:] = [
            replace(found, message=f"{found.message}{self._launcher.run}", related=True)
            for found in account.observations[before:]
        ]

    def _run_steps(self, case: AnyCase, judge_step: JudgeStep) -> None:
        self._forwards.run(case, partial(self._opened, case), judge_step)

    def _opened(self, case: AnyCase) -> Session:
        self._contract = checked(self._backend.contract, Contract, "contract")
        family = family_of(case)
        dtype = family.noise_dtype(case)
        self._noise = None if dtype is None else checked(self._backend.noise(dtype), NoiseModel, "noise")
        return family.open(case, self._backend, self._bench)

    def _terms(self, step: int, mode: str) -> JudgingTerms:
        return JudgingTerms(
            contract=self._contract,
            noise=self._noise,
            alpha=self._alpha,
            strict=self._strict,
            tiers=self._tiers,
            step=step,
            mode=mode,
            kernel=self._launcher.answering,
            keep=self._related is not None,
        )

    def _judge(self, result: object, terms: JudgingTerms) -> None:
        if self._digest is not None:
            self._digest.result(result)
        # No tensor of the judge has a gradient. Without gradient bookkeeping, its small operations take a tenth less
        # time.
        with torch.inference_mode():
            judgement = judging(result, self._case).judge(self._case, result, terms)
        if self._look is not None:
            self._look(terms.step, judgement, self._launcher.launched or [])
        if judgement.kept is not None:
            self._kept[terms.step] = judgement.kept
        self._account.add(judgement)
        if judgement.unanswered and self._case.searchable:
            # All values that are drawn are finite.
            message = (
                f"{judgement.unanswered} (token, head) rows attend with or to values that are not finite, but no "
                "request has such values: the backend passed other inputs to its kernel"
            )
            report = self._launcher.observation()
            self._account.observations.append(report(kind=Kind.NOT_FINITE, place="inputs", message=message))


def _on_first_line(message: str, words: str) -> str:
    first, *others = message.split("\n", 1)
    return "\n".join([f"{first}{words}", *others])
