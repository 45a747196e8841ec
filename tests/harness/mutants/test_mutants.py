"""Mutants on cases: their fates, the choice of them, and a run that is interrupted and goes on."""

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.mutants.choose import NoChanges, changed_lines, possible, sampled
from attnfuzz.harness.mutants.examine import Stopped, examined, measured
from attnfuzz.harness.mutants.results import (
    Fate,
    MeasuredCase,
    MutantResults,
    MutantsError,
    MutantsPlan,
    read_results,
    write_results,
)
from attnfuzz.harness.mutants.run import crew, run
from attnfuzz.harness.mutants.words import conclusion, render_markdown
from attnfuzz.harness.mutation.changes import Mutant
from attnfuzz.harness.sandbox.check import CannotRun
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict, Watched
from attnfuzz.harness.workers.supervisor import HandlerError, Refused
from attnfuzz.harness.workers.task import Watch
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case, Mode

FILE = "/planner.py"
CASE = Case(backend="trtllm_mha", geometry=HEADS, steps=(step(Mode.DECODE, (1, 5)),))
MUTANT = Mutant(file=FILE, line=2, number=0, operator="constant", before="0", after="1")
CASES = tuple(
    MeasuredCase(number=number, case=replace(CASE, seed=number), plan="own", lines={FILE: (1, 2)})
    for number in (2, 5, 9)
)
PLANNED = Verdict(watched=Watched(plan="own"))
CHANGED = Verdict(watched=Watched(plan="other"))


def failing(kind: Kind = Kind.OUTPUT_MISMATCH, message: str = "row 0 is wrong") -> Verdict:
    return Verdict(observations=(Observation(kind=kind, place="out", message=message),), watched=Watched(plan="other"))


class Scripted:
    """A runner with prepared verdicts, the last of them for all further runs. `fresh` has the index of each renewal."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = list(verdicts)
        self.watches: list[Watch] = []
        self.fresh: list[int] = []

    def watched(self, case: AnyCase, watch: Watch) -> Verdict:
        self.watches.append(watch)
        return self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]

    def renew(self) -> None:
        self.fresh.append(len(self.watches))

    def close(self) -> None:
        """Nothing to close."""


def fate_after(*verdicts: Verdict, cases: Sequence[MeasuredCase] = CASES) -> tuple[Fate, int, int]:
    found = examined(MUTANT, "x = 0", cases, Scripted(*verdicts), seconds=60.0, stop=threading.Event())
    return found.fate, found.ran, found.number


def test_a_mutant_is_killed_by_a_failure_that_comes_back_in_a_fresh_worker() -> None:
    runner = Scripted(PLANNED, failing())
    found = examined(MUTANT, "x = 0", CASES, runner, seconds=60.0, stop=threading.Event())
    assert (found.fate, found.kind, found.place, found.number) == (Fate.KILLED, Kind.OUTPUT_MISMATCH, "out", 5)
    assert runner.fresh == [0, 2]
    assert {watch.mutant for watch in runner.watches} == {MUTANT}
    once = examined(MUTANT, "x = 0", CASES, Scripted(failing(), CHANGED), seconds=60.0, stop=threading.Event())
    assert (once.fate, once.unconfirmed, once.changed, once.ran) == (Fate.SURVIVED, 1, 3, 3)


def test_mutants_that_fail_by_themselves_have_fates_of_their_own() -> None:
    assert fate_after(failing(Kind.RAISED))[0] is Fate.RAISES
    assert fate_after(failing(Kind.UNEXPECTED_REJECTION))[0] is Fate.RAISES
    assert fate_after(failing(Kind.HANG))[0] is Fate.HANGS
    assert fate_after(failing(Kind.RAISED, "MemoryError: "))[0] is Fate.OUT_OF_MEMORY


class Broken(Scripted):
    """A runner whose worker can't run any case."""

    def __init__(self, error: Exception) -> None:
        super().__init__(PLANNED)
        self.error = error

    def watched(self, case: AnyCase, watch: Watch) -> Verdict:
        raise self.error


def test_a_mutant_that_breaks_the_worker_around_it_ends_no_run() -> None:
    memory = HandlerError("Traceback:\n  a line\nOutOfMemory: no memory (Cannot allocate memory)\n")
    found = examined(MUTANT, "x = 0", CASES, Broken(memory), seconds=60.0, stop=threading.Event())
    assert (found.fate, found.place, found.number) == (Fate.OUT_OF_MEMORY, "the worker", 2)
    assert found.message.startswith("OutOfMemory: no memory")
    asked = Broken(Refused("the engine asks for a setting"))
    unanswered = examined(MUTANT, "x = 0", CASES, asked, seconds=60.0, stop=threading.Event())
    assert (unanswered.fate, unanswered.refused) == (Fate.REFUSES, 3)
    assert unanswered.message == "the engine asks for a setting"


def test_survivors_change_a_plan_or_none() -> None:
    assert fate_after(PLANNED) == (Fate.SAME_PLANS, 3, 0)
    assert fate_after(PLANNED, CHANGED, PLANNED) == (Fate.SURVIVED, 3, 0)
    refused = replace(CHANGED, unsupported="such a batch")
    assert fate_after(refused, PLANNED) == (Fate.REFUSES, 3, 0)
    assert fate_after(refused, CHANGED) == (Fate.SURVIVED, 3, 0)
    assert fate_after(Verdict(watched=Watched(plan="own", made=False))) == (Fate.NOT_MADE, 1, 0)


def test_the_first_argument_that_differs_is_recorded_of_a_survivor() -> None:
    own, other = (
        replace(PLANNED, watched=Watched(plan=plan, parts=(("attend: query", "a"), ("attend: seq_lens", part))))
        for plan, part in (("own", "b"), ("other", "c"))
    )
    runner = Scripted(other, own, other)
    found = examined(MUTANT, "x = 0", CASES[:1], runner, seconds=60.0, stop=threading.Event())
    assert (found.fate, found.difference) == (Fate.SURVIVED, "attend: seq_lens")
    assert [(watch.parts, watch.mutant) for watch in runner.watches] == [(False, MUTANT), (True, None), (True, MUTANT)]


def test_a_mutant_gets_one_case_at_least_and_no_more_when_its_time_is_over() -> None:
    spent = examined(MUTANT, "x = 0", CASES, Scripted(PLANNED), seconds=0.0, stop=threading.Event())
    assert (spent.ran, spent.reached) == (1, 3)
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(Stopped):
        examined(MUTANT, "x = 0", CASES, Scripted(PLANNED), seconds=60.0, stop=stopped)


def test_cases_that_fail_or_have_no_steady_plan_say_nothing_about_mutants() -> None:
    assert measured(1, CASE, (FILE,), Scripted(failing())) is None
    assert measured(1, CASE, (FILE,), Scripted(Verdict(unsupported="windows"))) is None
    assert measured(1, CASE, (FILE,), Scripted(PLANNED, CHANGED)) is None
    kept = measured(7, CASE, (FILE,), Scripted(Verdict(watched=Watched(plan="own", lines={FILE: (1, 3)})), PLANNED))
    assert kept == MeasuredCase(number=7, case=CASE, plan="own", lines={FILE: (1, 3)})


def cases_with(file: Path, *lines: int) -> tuple[MeasuredCase, ...]:
    return tuple(replace(each, lines={str(file): lines}) for each in CASES)


@pytest.fixture
def planner(tmp_path: Path) -> Path:
    file = tmp_path / "planner.py"
    file.write_text("def plan(x, y):\n    z = x + 1 if x < y else 0\n    w = z * 2\n    return w - y\n")
    return file


def test_only_executed_lines_are_changed_and_samples_have_all_kinds(planner: Path) -> None:
    found = possible(cases_with(planner, 1, 2, 3))
    assert {each.mutant.line for each in found} == {2, 3}
    kinds = {each.mutant.operator for each in found}
    assert {each.mutant.operator for each in sampled(found, len(kinds), 1)} == kinds
    assert sampled(found, None, 1)[:3] == sampled(found, 3, 1)
    assert sorted(sampled(found, None, 1)) == sorted(found)
    assert sampled(found, 8, 1) != sampled(found, 8, 2)


def test_lines_of_a_change_since_a_commit_are_those_of_the_diff(planner: Path) -> None:
    def git(*arguments: str) -> None:
        settings = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["/usr/bin/env", "git", "-C", str(planner.parent), *settings, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    planner.write_text(planner.read_text().replace("z * 2", "z * 3"))
    lines = changed_lines(planner.parent, "HEAD")
    assert lines == {str(planner): frozenset({3})}
    assert {each.mutant.line for each in possible(cases_with(planner, 2, 3, 4), lines)} == {3}
    with pytest.raises(NoChanges, match="can't be compared with elsewhere"):
        changed_lines(planner.parent, "elsewhere")


def begun(planner: Path, sample: int) -> MutantResults:
    asked = MutantsPlan(
        backend="trtllm_mha",
        root=str(planner.parent),
        places=(str(planner),),
        examples=3,
        seconds=60.0,
        sample=sample,
        seed=1,
        jobs=1,
    )
    return MutantResults(asked=asked, environment={})


def test_an_interrupted_run_goes_on_with_the_mutants_that_are_left(planner: Path, tmp_path: Path) -> None:
    def drawn() -> NoReturn:
        raise AssertionError("cases are drawn once")

    results = replace(begun(planner, 4), cases=cases_with(planner, 2, 3, 4))
    with crew(1, lambda: Scripted(CHANGED)) as team:
        for now in run(results, drawn, team):
            results = now
            if len(now.outcomes) == 2:
                break
    write_results(tmp_path, results)
    with crew(1, lambda: Scripted(failing())) as team:
        (*_, ended) = run(read_results(tmp_path), drawn, team)
    assert [each.fate for each in ended.outcomes] == [Fate.SURVIVED] * 2 + [Fate.KILLED] * 2
    assert len({each.mutant for each in ended.outcomes}) == 4
    assert conclusion(ended).startswith("2 of 4 mutants that change some plan fail (50%): 2 killed, 2 survived.")
    rows = [line for line in render_markdown(ended).splitlines() if line.startswith("| planner.py:")]
    assert len(rows) == 4
    assert "survived: 3 of 3 plans differ" in rows[0]


def test_a_backend_that_cannot_run_ends_a_run_with_its_own_error(planner: Path) -> None:
    def missing() -> NoReturn:
        raise CannotRun("triton can't run here: it is not installed")

    with crew(2, missing) as team, pytest.raises(CannotRun, match="not installed"):
        list(run(begun(planner, 4), lambda: [CASE], team))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MutantsError, match="Name the --home of a run of mutants"):
        read_results(tmp_path)
    (tmp_path / "mutants.json").write_text("{}")
    with pytest.raises(MutantsError, match="start another"):
        read_results(tmp_path)
