"""What a kernel does to its worker is a verdict on that kernel, and the next case is right.

Each runs in a real worker: these are signals, descriptors and processes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness_cases import decode_case

from attnfuzz.harness.backends.load import BackendFileError
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Observation

FILE = str(Path(__file__).parents[1] / "fakes" / "misbehaving_backend.py")

RAISED = {
    "EXIT": ("SystemExit", "SystemExit: 0"),
    "INTERRUPT": ("KeyboardInterrupt", "KeyboardInterrupt: "),
    "GENERATOR": ("GeneratorExit", "GeneratorExit: gone"),
    "ODD": ("Odd", "Odd: odd"),
    "UNPRINTABLE": ("Unprintable", "Unprintable: (its text can't be read: Odd in Unprintable.__str__)"),
    "WORDLESS": ("Wordless", "Wordless: (its text can't be read: TypeError in Wordless.__str__)"),
    "SURROGATE": ("RuntimeError", "RuntimeError: \N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}[31m"),
    "OPEN_ODD": ("Odd", "Odd: not open"),
    "LACKS_A_MODULE": ("ModuleNotFoundError", "ModuleNotFoundError: No module named 'torch.surely_not_there'"),
    "LACKS_A_PART_OF_A_STUB": (
        "ModuleNotFoundError",
        "ModuleNotFoundError: No module named 'stub.part'; 'stub' is not a package",
    ),
    "LACKS_NUMBER_FIVE": ("ModuleNotFoundError", "ModuleNotFoundError: x"),
    "NO_OUTPUT": ("TypeError", "TypeError: the backend's output is a str, not a Output"),
}

WROTE = "it wrote to the descriptors that its worker answers with"
LOST = "it closed or replaced the descriptors that its worker answers with"
OUTSIDE = "killed by SIGKILL from outside, most likely out of memory"

DIED = {
    "JUNK": (Kind.WORKER_DIED, WROTE),
    "CLOSE": (Kind.WORKER_DIED, LOST),
    "CLOSE_ALL": (Kind.WORKER_DIED, LOST),
    "REPLACE": (Kind.WORKER_DIED, LOST),
    "ABORT_BESIDE_A_CHILD": (Kind.WORKER_DIED, "killed by SIGABRT"),
    "STOP_NURSERY_AND_ABORT": (Kind.WORKER_DIED, "killed by SIGABRT"),
    "IGNORE_FAULT": (Kind.ILLEGAL_ACCESS, "unknown address"),
    "KILL_NURSERY": (Kind.WORKER_DIED, OUTSIDE),
    "KILL_GROUP": (Kind.WORKER_DIED, OUTSIDE),
}

HARMLESS = (
    "TRUNCATE",
    "FORK",
    "FORK_IN_C",
    "FORK_AND_SLEEP",
    "FORK_AND_ABORT",
    "PRINT",
    "SETTINGS",
    "CLOSE_STDOUT",
    "BUSY_THREAD",
    "RAISE_IN_A_THREAD",
    "RAISE_LATE",
    "STOP_NURSERY",
)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(timeout=10.0) as runner:
        yield runner


def observed(runner: Runner, name: str) -> tuple[Observation, ...]:
    """What is observed of a backend; the verdicts on a wrong and on a correct one right after it are right."""
    found = runner.verdict(decode_case(f"{FILE}:{name}")).observations
    (wrong,) = runner.verdict(decode_case(f"{FILE}:WRONG_ROW")).observations
    assert wrong.kind is Kind.OUTPUT_MISMATCH
    assert runner.verdict(decode_case(f"{FILE}:NONE")).observations == ()
    return found


@pytest.mark.parametrize("name", RAISED)
def test_whatever_a_backend_raises_is_a_finding(runner: Runner, name: str) -> None:
    restarts = runner.restarts
    (found,) = observed(runner, name)
    assert found.kind is Kind.RAISED
    assert (found.place, found.message.partition("\n  ")[0]) == RAISED[name]
    assert runner.restarts == restarts


def test_a_package_that_is_not_installed_is_no_finding(runner: Runner) -> None:
    verdict = runner.verdict(decode_case(f"{FILE}:LACKS_A_PACKAGE"))
    assert verdict.observations == ()
    assert verdict.unsupported == "it imports surely_not_installed, which is not installed"


def test_messages_of_a_backend_are_of_bounded_length(runner: Runner) -> None:
    (lengthy,) = observed(runner, "LENGTHY")
    assert len(lengthy.message) < 11_000
    (named,) = observed(runner, "LONG_NAME")
    assert len(named.place) == 200
    assert named.message.startswith(f"{named.place}: named\n")


@pytest.mark.parametrize("name", DIED)
def test_a_worker_that_is_lost_is_a_finding(runner: Runner, name: str) -> None:
    (found,) = observed(runner, name)
    assert (found.kind, found.place) == DIED[name]
    # When it was done is not known of all, and then no launch is blamed at random.
    assert found.kernel == ("" if found.place in (WROTE, LOST) else "attend")


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_misdeeds_are_no_findings(runner: Runner, name: str) -> None:
    assert observed(runner, name) == ()


def test_an_alarm_ends_with_its_case(runner: Runner) -> None:
    assert observed(runner, "ALARM") == ()
    assert runner.verdict(decode_case(f"{FILE}:SLOW")).observations == ()


def test_a_fault_without_its_handler_is_not_blamed_on_a_compiler(runner: Runner) -> None:
    (found,) = observed(runner, "IGNORE_FAULT")
    assert "the handler that notes it did not run: it was ignored" in found.message
    # The next one is noted.
    (fault,) = runner.verdict(decode_case(f"{FILE}:SEGFAULT")).observations
    assert fault.place == "query"


def test_leftovers_of_an_earlier_case_end_no_worker(runner: Runner) -> None:
    runner.verdict(decode_case(f"{FILE}:NONE"))
    assert observed(runner, "STUMBLE") == ()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PREPARE", r"its prepare\(\) raises Odd: not prepared"),
        ("OPS", "its ops raises Odd: no ops"),
        ("NOISE", r"its noise\(float32\) raises Odd: no noise"),
        ("NO_NOISE", r"its noise\(float32\) is None: make it a NoiseModel"),
    ],
)
def test_a_backend_that_raises_before_a_case_runs_is_refused(runner: Runner, name: str, words: str) -> None:
    with pytest.raises(BackendFileError, match=words):
        runner.verdict(decode_case(f"{FILE}:{name}"))
    assert observed(runner, "NONE") == ()
