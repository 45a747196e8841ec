"""Workers that are killed from outside, at random: no case is lost or counted twice, and none takes the blame."""

from threading import Timer

import pytest
from harness_cases import decode_case
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from random_kills import Killer, children
from repetition import examples

from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.sandbox.check import RUNS_IF_KILLED, Runner
from attnfuzz.harness.sandbox.teams import Team
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, Lost, ShrinkBudget, Slice, SliceDone, Suspect, Tally
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device


def cheap_cases(backend: str) -> SearchStrategy[Case]:
    lengths = st.lists(st.integers(0, 30), min_size=1, max_size=4)
    return st.builds(lambda kv_lens, seed: decode_case(backend, *kv_lens, seed=seed), lengths, st.integers(0, 1 << 30))


def workers_of(runner: Runner) -> list[int]:
    lifeline = runner._teams.of(Team(Device.CPU))._lifeline
    return [] if lifeline is None else children(lifeline._process.pid)


class HarassedRunner(OneByOne):
    """Kills up to two workers, at work or not, around each case; three in a row would be the case's fault."""

    def __init__(self, runner: Runner) -> None:
        self.asked = 0
        self.killer = Killer(lambda: workers_of(runner))
        self._runner = runner

    def verdict(self, case: Case) -> Verdict:
        self.asked += 1
        chance = self.killer.random
        strikes = [Timer(chance.uniform(0.0, 0.03), self.killer.strike) for _ in range(chance.choice((0, 0, 1, 2)))]
        for strike in strikes:
            strike.start()
        try:
            return self._runner.verdict(case)
        finally:
            for strike in strikes:
                strike.join()

    def renew(self) -> None:
        self._runner.renew()


def hunt(runner: Runner, backend: str, examples: int) -> tuple[HarassedRunner, SliceDone, list[AnyMessage]]:
    runner.start(backend)
    judge, sent = HarassedRunner(runner), list[AnyMessage]()
    budget = ShrinkBudget(runs=30, seconds=5.0)
    task = Slice(backend=backend, index=0, seed=1, examples=examples, shrink=budget)
    return judge, Hunt(task, judge, sent.append).run(cheap_cases(backend)), sent


@examples(30, 120)
def test_random_kills_change_no_count_and_accuse_no_case(runner: Runner, defective: str, count: int) -> None:
    before = runner.restarts
    judge, done, sent = hunt(runner, f"{defective}:NONE", examples=count)
    tallies = [message for message in sent if isinstance(message, Tally)]
    assert judge.killer.count > count // 3
    assert runner.restarts > before
    assert done.tally.searched == done.tally.cases == judge.asked == sum(tally.cases for tally in tallies) == count
    assert done.tally.deaths == sum(tally.deaths for tally in tallies) == 0
    assert not [message for message in sent if isinstance(message, Suspect | Caught | Lost)]


@pytest.mark.slow
def test_a_bug_is_found_among_random_kills(runner: Runner, defective: str) -> None:
    _, _, sent = hunt(runner, f"{defective}:LONG_KV", examples=50)
    (caught,) = (message for message in sent if isinstance(message, Caught))
    assert caught.observation.kind is Kind.OUTPUT_MISMATCH


def test_a_case_that_is_killed_each_time_takes_the_blame(runner: Runner, defective: str) -> None:
    before = runner.restarts
    verdict = runner.verdict(decode_case(f"{defective}:KILLED"))
    assert [failure.kind for failure in verdict.failures] == [Kind.WORKER_DIED]
    assert runner.restarts == before + RUNS_IF_KILLED


def test_a_death_that_is_no_kill_is_run_once(runner: Runner, defective: str) -> None:
    before = runner.restarts
    runner.verdict(decode_case(f"{defective}:ABORT"))
    assert runner.restarts == before + 1
