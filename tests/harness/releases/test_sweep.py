"""A sweep over four fake releases: what is run in which, what is searched, and what becomes of what can't be run."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from fake_engine import ENGINE, KIND
from fake_search import of_steps
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.releases.outcomes import Ending
from attnfuzz.harness.releases.replaying import Replayed, reason_of, replayed
from attnfuzz.harness.releases.results import Searched, SweepError, SweepPlan, SweepResults, read_results, write_results
from attnfuzz.harness.releases.sweep import StartableRunner, Sweep
from attnfuzz.harness.releases.wanted import Wanted, fingerprint_anywhere
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.sandbox.check import CannotRun
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.workers.supervisor import HandlerError
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case

RELEASES = ("1.0", "1.1", "1.2", "1.3")
MISMATCH = Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="1 instead of 2\nand more", mode="decode")
NAN = Observation(kind=Kind.NOT_FINITE, place="out", message="NaN", mode="decode")
PASSED = Verdict(rows=1)


def failing(*seen: Observation) -> Verdict:
    return Verdict(observations=seen)


def release_of(backend: str) -> str:
    return backend.removeprefix("fake==").removesuffix(f":{KIND}")


class FakeJudge(OneByOne):
    """Judges by the release of a case's backend, and writes down what it was asked."""

    def __init__(self, verdicts: dict[str, Verdict | Exception], unable: dict[str, Exception]) -> None:
        self._verdicts, self._unable = verdicts, unable
        self.asked: list[Case] = []

    def start(self, backend: str) -> None:
        if release_of(backend) in self._unable:
            raise self._unable[release_of(backend)]

    def verdict(self, case: Case) -> Verdict:
        self.asked.append(case)
        verdict = self._verdicts.get(release_of(case.backend), PASSED)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def renew(self) -> None:
        pass


class World:
    """Fake releases, their searches, and a sweep over them in a folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.verdicts: dict[str, Verdict | Exception] = {}
        self.unable: dict[str, Exception] = {}
        self.finds: dict[str, Observation] = {}
        self.ended: dict[str, Searched] = {}
        self.searches: list[str] = []
        self.sent: list[str] = []
        self.judges: list[FakeJudge] = []
        self.judge = FakeJudge

    def sweep(self, *known: Wanted, results: SweepResults | None = None, examples: int | None = 10) -> Sweep:
        return Sweep(
            results or SweepResults(asked=asked(examples), environment={"attnfuzz": "1", "torch": "2"}),
            ENGINE,
            known,
            runners=self._judge,
            search=self._search,
            findings=self.home / "findings",
            cases=self.home / "cases",
            tell=self.sent.append,
        )

    def run(self, *known: Wanted, results: SweepResults | None = None, examples: int | None = 10) -> SweepResults:
        *_, last = self.sweep(*known, results=results, examples=examples).run()
        return last

    def _judge(self) -> AbstractContextManager[StartableRunner]:
        @contextmanager
        def judge() -> Iterator[StartableRunner]:
            self.judges.append(self.judge(self.verdicts, self.unable))
            yield self.judges[-1]

        return judge()

    def _search(self, backends: tuple[str, ...]) -> Searched:
        (backend,) = backends
        release = release_of(backend)
        self.searches.append(release)
        seen = self.finds.get(release)
        if seen is not None:
            case = decode_case(backend, 7)
            archive = Archive(self.home / "findings", self.home / "unconfirmed", campaign=release, environment={})
            finding = Finding(case=case, first=case, observation=seen, report="")
            archive.file(finding, Fingerprint.of(backend, seen))
        return self.ended.get(release, Searched(examples=10, cases=9, campaign=release))


def asked(examples: int | None = 10) -> SweepPlan:
    return SweepPlan(package="fake", releases=RELEASES, kinds=(KIND,), examples=examples, seconds=None, seed=1, jobs=1)


def report(*kinds: Kind) -> Wanted:
    case = decode_case(ENGINE.backend("1.0", KIND))
    return Wanted(name="fake-1", title="wrong", kind=KIND, case=case, kinds=kinds, reported=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def endings(results: SweepResults, row: int = 0) -> dict[str, Ending]:
    return {release: cell.ending for release, cell in results.rows[row].cells.items()}


def test_a_report_is_run_in_every_release_and_has_a_course(world: World) -> None:
    world.verdicts = {"1.0": failing(MISMATCH), "1.1": failing(MISMATCH)}
    results = world.run(report(Kind.OUTPUT_MISMATCH))
    assert list(endings(results).items()) == [
        ("1.0", Ending.FAILS),
        ("1.1", Ending.FAILS),
        ("1.2", Ending.PASSES),
        ("1.3", Ending.PASSES),
    ]
    assert (results.rows[0].course.began, results.rows[0].course.ended) == ("by 1.0", "1.2")
    assert results.rows[0].cells["1.0"].line == "OutputMismatch at out, decode: 1 instead of 2"
    assert results.fails
    assert results.judged


def test_the_case_that_fails_is_kept_as_it_was_run(world: World) -> None:
    world.verdicts = {"1.1": failing(MISMATCH)}
    cell = world.run(report()).rows[0].cells["1.1"]
    kept = case_file.load(cell.case)
    assert kept.backend == ENGINE.backend("1.1", KIND)
    assert [path.name for path in (world.home / "cases").iterdir()] == ["fake-1-1.1.json"]


def test_another_failure_hides_the_one_that_is_looked_for(world: World) -> None:
    world.verdicts = {"1.0": failing(MISMATCH), "1.1": failing(NAN)}
    results = world.run(report(Kind.OUTPUT_MISMATCH))
    assert endings(results)["1.1"] is Ending.FAILS_OTHERWISE
    assert results.rows[0].cells["1.1"].line == "NotFinite at out, decode: NaN"
    assert results.rows[0].cells["1.1"].case == ""
    assert results.rows[0].course.ended == "1.2"


def test_an_unsupported_case_could_not_be_run(world: World) -> None:
    world.verdicts = {"1.1": Verdict(unsupported="no kernel for that")}
    cell = world.run(report()).rows[0].cells["1.1"]
    assert (cell.ending, cell.line) == (Ending.CANNOT_RUN, "no kernel for that")


def test_a_release_that_can_not_be_loaded_is_a_row_with_the_reason(world: World) -> None:
    world.unable = {"1.1": CannotRun("1.1 can't run here: buy a faster machine")}
    world.verdicts = {"1.0": failing(MISMATCH)}
    results = world.run(report())
    assert endings(results)["1.1"] is Ending.CANNOT_BE_HAD
    assert results.unable == {ENGINE.backend("1.1", KIND): "1.1 can't run here: buy a faster machine"}
    assert world.searches == ["1.0", "1.2", "1.3"]
    assert endings(results)["1.3"] is Ending.PASSES


def test_a_failure_of_the_harness_spoils_one_cell_alone(world: World) -> None:
    world.verdicts = {"1.1": HandlerError("Traceback:\n  somewhere\nNotTold: it asked for x\n")}
    results = world.run(report())
    cell = results.rows[0].cells["1.1"]
    assert (cell.ending, cell.line) == (Ending.CANNOT_RUN, "NotTold: it asked for x")
    assert world.searches == list(RELEASES)


def test_a_failure_found_in_one_release_is_run_in_all_others(world: World) -> None:
    world.finds = {"1.2": NAN}
    world.verdicts = {"1.2": failing(NAN), "1.3": failing(NAN)}
    results = world.run()
    assert [row.wanted.found for row in results.rows] == [("1.2",)]
    assert (results.rows[0].course.began, results.rows[0].course.ended) == ("1.2", "still there")
    assert list(results.rows[0].cells) == list(RELEASES)


def test_a_given_finding_that_is_found_again_is_one_failure(world: World) -> None:
    world.finds = {"1.2": NAN}
    (once,) = world.run().rows
    given = replace(once.wanted, found=(), title="given")
    (again,) = world.run(given).rows
    assert (again.wanted.title, again.wanted.found) == ("given", ("1.2",))
    assert list(again.cells) == list(RELEASES)


def test_a_finding_that_fails_like_a_report_in_all_releases_resembles_it(world: World) -> None:
    world.finds = {"1.0": MISMATCH}
    world.verdicts = {"1.0": failing(MISMATCH), "1.1": failing(MISMATCH)}
    known, news = world.run(report(Kind.OUTPUT_MISMATCH)).rows
    assert (known.resembles, news.resembles) == ("", "fake-1")


def test_a_finding_that_fails_in_other_releases_resembles_nothing(world: World) -> None:
    world.finds = {"1.3": MISMATCH}
    world.verdicts = {"1.0": failing(NAN), "1.3": failing(MISMATCH)}
    assert [row.resembles for row in world.run(report(Kind.NOT_FINITE)).rows] == ["", ""]


def test_a_fault_resembles_a_report_wherever_it_lands(world: World) -> None:
    fault = Observation(kind=Kind.ILLEGAL_ACCESS, place="seq_lens", message="read", mode="decode")
    world.finds = {"1.0": replace(fault, place="kv_cache")}
    places = iter(["seq_lens", "kv_cache"])

    class Wild(FakeJudge):
        def verdict(self, case: Case) -> Verdict:
            return failing(replace(fault, place=next(places))) if release_of(case.backend) == "1.0" else PASSED

    world.judge = Wild
    assert [row.resembles for row in world.run(report()).rows] == ["", "fake-1"]


def test_a_finding_that_fails_otherwise_in_the_same_releases_resembles_nothing(world: World) -> None:
    world.finds = {"1.0": MISMATCH}
    world.verdicts = {"1.0": failing(NAN, MISMATCH)}
    assert [row.resembles for row in world.run(report(Kind.NOT_FINITE)).rows] == ["", ""]


def test_where_neither_fails_nothing_resembles(world: World) -> None:
    world.finds = {"1.3": MISMATCH}
    assert [row.resembles for row in world.run(report()).rows] == ["", ""]


def test_without_a_budget_nothing_is_searched(world: World) -> None:
    results = world.run(report(), examples=None)
    assert not world.searches
    assert list(endings(results)) == list(RELEASES)


def test_each_release_has_a_judge_of_its_own(world: World) -> None:
    world.run(report())
    assert [{release_of(case.backend) for case in judge.asked} for judge in world.judges] == [{r} for r in RELEASES]


def test_results_are_reported_after_each_release(world: World) -> None:
    seen = [list(results.searched) for results in world.sweep(report()).run()]
    assert seen == [["1.0"], ["1.0", "1.1"], ["1.0", "1.1", "1.2"], list(RELEASES)]


def test_an_interrupted_search_ends_the_sweep_and_is_done_again_when_it_goes_on(world: World) -> None:
    world.ended = {"1.1": Searched(examples=3, cases=2, campaign="1.1", interrupted=True)}
    first = world.run(report())
    assert list(first.searched) == ["1.0", "1.1"]
    world.ended, world.searches = {}, []
    write_results(world.home, first)
    second = world.run(report(), results=read_results(world.home))
    assert world.searches == ["1.1", "1.2", "1.3"]
    assert [each.cases for each in second.searched.values()] == [9, 9, 9, 9]


def test_a_search_that_failed_is_reported_and_done_again(world: World) -> None:
    world.ended = {"1.1": Searched(examples=3, cases=2, campaign="1.1", failure="the search failed: x")}
    first = world.run()
    assert world.searches == list(RELEASES)
    world.searches = []
    world.run(results=first)
    assert world.searches == ["1.1"]


def test_nothing_that_could_be_run_is_no_answer(world: World) -> None:
    world.unable = {release: CannotRun("no") for release in RELEASES}
    results = world.run(report())
    assert not results.judged
    assert not results.fails


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory. Name the --home of a sweep"),
        ("{", "is not a sweep of this attnfuzz"),
        ('{"format": "other"}', "is not a sweep of this attnfuzz"),
    ],
)
def test_a_folder_without_a_sweep_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(SweepError, match=words):
        read_results(tmp_path)


def test_results_are_read_as_they_were_written(world: World) -> None:
    world.finds, world.verdicts = {"1.2": NAN}, {"1.2": failing(NAN)}
    results = world.run(report())
    write_results(world.home, results)
    assert read_results(world.home) == results


class Lucky(FakeJudge):
    """Fails with one seed of the values."""

    def verdict(self, case: Case) -> Verdict:
        return failing(MISMATCH) if case.seed == 2 else PASSED


def test_a_failure_that_needs_other_values_is_found_with_fresh_seeds() -> None:
    """What chance decides would else seem to be mended in a release that has it."""
    seen = replayed(report(), ENGINE.backend("1.0", KIND), Lucky({}, {}))
    assert seen.ending is Ending.FAILS


def test_a_case_outside_the_capability_names_the_missing_feature() -> None:
    wanted = report()
    without_padding = replace(wanted, case=wanted.case.having(chunk_capacity=8), reported=False)
    step = replace(of_steps(wanted.case).steps[0], mode="verify")
    verify = replace(without_padding, case=wanted.case.having(steps=(step,)))
    seen = replayed(verify, "fake==1.0:decoder", FakeJudge({}, {}))
    assert seen.ending is Ending.CANNOT_RUN
    assert seen.line.startswith("it does not support ")


def test_a_reason_is_the_last_line_of_the_exception() -> None:
    assert reason_of(HandlerError("Traceback\n  x\nKeyError: 'y'\n")) == "KeyError: 'y'"
    assert reason_of(ValueError()) == "ValueError"


def test_a_reason_does_not_name_the_release_again() -> None:
    assert reason_of(CannotRun("fake==1.0:k can't run here: pip install it"), "fake==1.0:k") == "pip install it"
    assert reason_of(CannotRun("fake==1.0: no such class: see x"), "fake==1.0:k") == "no such class: see x"


def test_a_failure_keeps_its_fingerprint_without_a_backend() -> None:
    seen = replayed(report(), ENGINE.backend("1.0", KIND), FakeJudge({"1.0": failing(MISMATCH)}, {}))
    assert isinstance(seen, Replayed)
    assert seen.fingerprint == fingerprint_anywhere(MISMATCH)
