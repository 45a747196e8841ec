"""check(): what fails is raised and left to replay; inside of Hypothesis it is made small, and nothing is timed."""

import os
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from defective_backend import LONG
from fake_search import decode, kv_lens, observed
from harness_cases import decode_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import DeadlineExceeded, FailedHealthCheck, FlakyFailure, Unsatisfiable

import attnfuzz
from attnfuzz.harness.pytest import check as check_module
from attnfuzz.harness.pytest import in_hypothesis
from attnfuzz.harness.pytest.check import check
from attnfuzz.harness.sandbox import check as sandbox
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.sandbox.check import CannotRun, Runner
from attnfuzz.harness.verdict.failures import FAILURES, Failure, Kind, Verdict
from attnfuzz.reference import case_file
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.geometry import KvLayout

README = Path(__file__).parents[3] / "README.md"


CAPABLE = SimpleNamespace(capability=Capability(modes=(Mode.DECODE,), layouts=tuple(KvLayout)))

SLOW_DRAWS = 0.12
"""Ten of these are too slow for Hypothesis' health check."""


class Judged(OneByOne):
    """Stands for the process's Runner: fails on KV of this length, or `once`. Its first case takes `seconds`."""

    def __init__(self) -> None:
        self.seconds, self.longest, self.once = 0.0, LONG, False
        self.cases: list[Case] = []

    def verdict(self, case: Case) -> Verdict:
        time.sleep(0.0 if self.cases else self.seconds)
        self.cases.append(case)
        fails = max(kv_lens(case)) >= self.longest
        if fails and self.once:
            self.longest = 2000
        return Verdict(observations=(observed(Kind.UNWRITTEN),) if fails else ())

    def explained(self, _: Case, verdict: Verdict) -> Verdict:
        return verdict

    def renew(self) -> None:
        pass


@pytest.fixture
def in_tmp_path(tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Path:
    """check() on this module's workers, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_module, "shared_runner", lambda: runner)
    return tmp_path


def replayed(failure: Failure) -> Path:
    """The file that the last line of a failure replays."""
    line = str(failure).splitlines()[-1]
    assert line.startswith("replay: attnfuzz replay .attnfuzz/")
    return Path(line.split()[-1])


@pytest.mark.usefixtures("in_tmp_path")
def test_check_raises_the_kind_and_leaves_the_case(defective: str) -> None:
    case = decode_case(f"{defective}:NAN_ROW")
    with pytest.raises(FAILURES[Kind.NOT_FINITE]) as caught:
        check(case)
    assert case_file.load(replayed(caught.value)) == case
    assert "NotFinite: out, step 0 (decode), attend" in str(caught.value)
    assert "step 0    decode" in str(caught.value)


def test_check_of_a_case_that_passes_leaves_nothing(in_tmp_path: Path, defective: str) -> None:
    check(decode_case(f"{defective}:NONE"))
    assert list(in_tmp_path.iterdir()) == []


def test_hypothesis_leaves_the_smallest_case(in_tmp_path: Path, defective: str) -> None:
    @settings(database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.integers(0, 30), min_size=1, max_size=3))
    def find(lengths: list[int]) -> None:
        attnfuzz.check(decode_case(f"{defective}:LONG_KV", *lengths))

    with pytest.raises(FAILURES[Kind.OUTPUT_MISMATCH]) as caught:
        find()
    left = case_file.load(replayed(caught.value))
    assert isinstance(left, Case)
    assert kv_lens(left) == [LONG]
    assert left.geometry.q_heads == 1
    assert case_file.case_id(left) in str(caught.value)
    assert re.search(r"shrunk in \d+ runs from case [0-9a-f]{12}$", str(caught.value), re.MULTILINE)
    assert len(list((in_tmp_path / ".attnfuzz").glob("*.json"))) == 1


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    """check() on a judge that costs nothing, of cases without a backend."""
    judge = Judged()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check_module, "shared_runner", lambda: judge)
    monkeypatch.setattr("attnfuzz.harness.search.shrink.resolve", lambda _: CAPABLE)
    return judge


def failing_test() -> tuple[Callable[[], None], list[int]]:
    """A test that fails on long KV, and what was drawn for it."""
    drawn: list[int] = []

    @settings(database=None, derandomize=True, max_examples=200, deadline=200)
    @given(st.integers(0, 1000))
    def find(length: int) -> None:
        drawn.append(length)
        attnfuzz.check(decode(length, 0))

    return find, drawn


@pytest.mark.usefixtures("judged")
def test_a_test_that_failed_draws_no_other_case_and_runs_only_those_of_the_reducer() -> None:
    find, drawn = failing_test()
    with pytest.raises(Failure) as caught:
        find()
    left = case_file.load(replayed(caught.value))
    assert isinstance(left, Case)
    assert kv_lens(left) == [LONG]
    first = next(at for at, length in enumerate(drawn) if length >= LONG)
    # Once more, to report it.
    assert drawn[first:] == [drawn[first]] * 2


def test_the_exception_is_that_of_the_first_line_of_its_text(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smallest case may fail in another way as well, which is worse."""

    def verdict(case: Case) -> Verdict:
        kinds = [Kind.LSE_MISMATCH] if max(kv_lens(case)) > LONG else [Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH]
        return Verdict(observations=tuple(map(observed, kinds)) if max(kv_lens(case)) >= LONG else ())

    monkeypatch.setattr(judged, "verdict", verdict)
    find, _ = failing_test()
    with pytest.raises(Failure) as caught:
        find()
    assert str(caught.value).startswith(f"{type(caught.value).__name__}: ")
    assert case_file.load(replayed(caught.value)) is not None


def test_each_run_of_a_test_begins_anew(judged: Judged) -> None:
    find, drawn = failing_test()
    for _ in range(2):
        with pytest.raises(Failure):
            find()
    judged.longest = 2000
    drawn.clear()
    judged.cases.clear()
    find()
    assert len(judged.cases) == len(drawn) == 200


def test_a_case_that_fails_once_is_flaky(judged: Judged) -> None:
    judged.once = True
    find, _ = failing_test()
    with pytest.raises(FlakyFailure):
        find()


@pytest.fixture
def slow(judged: Judged) -> Callable[[], None]:
    """A test of a correct kernel on a slow machine, with Hypothesis' own settings."""
    judged.seconds, judged.longest = 0.4, 2000

    def drawn_slowly(length: int) -> Case:
        time.sleep(SLOW_DRAWS)
        return decode(length)

    @settings(database=None, max_examples=10, deadline=200, suppress_health_check=())
    @given(st.integers(0, 1000).map(drawn_slowly))
    def passes(case: Case) -> None:
        attnfuzz.check(case)

    return passes


@pytest.mark.slow
def test_a_slow_machine_fails_no_test(slow: Callable[[], None]) -> None:
    slow()


@pytest.mark.slow
def test_hypothesis_would_fail_it(slow: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_hypothesis, "untimed", nullcontext)
    with pytest.raises((DeadlineExceeded, FailedHealthCheck, FlakyFailure)):
        slow()


@pytest.mark.slow
def test_the_example_in_readme_passes_on_a_slow_kernel(
    in_tmp_path: Path, defective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = sandbox.shared_runner()
    monkeypatch.setattr(sandbox, "shared_runner", lambda: runner)
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, Callable[[], None]] = {}
    exec(block.replace('"trtllm_mha"', repr(f"{defective}:SLOW")), names)  # noqa: S102 - our own README
    # One slow example is enough for Hypothesis' deadline, each of these takes a second.
    settings(database=None, max_examples=3, deadline=200, suppress_health_check=())(names["test_attention"])()
    assert not list(in_tmp_path.iterdir())


@pytest.mark.usefixtures("in_tmp_path")
def test_each_test_has_a_file_of_its_own(defective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left = set()
    for test in ("a.py::test_x (call)", "a.py::test_y (call)"):
        monkeypatch.setitem(os.environ, "PYTEST_CURRENT_TEST", test)
        with pytest.raises(Failure) as caught:
            check(decode_case(f"{defective}:NAN_ROW"))
        left.add(replayed(caught.value))
    assert len(left) == 2


@pytest.mark.usefixtures("in_tmp_path")
def test_check_raises_for_a_case_that_a_backend_rejects(defective: str) -> None:
    case = decode_case(f"{defective}:UNSUPPORTED")
    with pytest.raises(CannotRun, match="there is no kernel for this"):
        check(case)

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.just(case))
    def find(case: Case) -> None:
        check(case)

    with pytest.raises(Unsatisfiable):
        find()
