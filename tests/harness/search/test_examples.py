"""What a seed draws does not depend on which modules are loaded, nor from where."""

import subprocess
import sys
from pathlib import Path

import pytest
from fake_search import fake_cases

from attnfuzz.harness.campaign.replays import may_run
from attnfuzz.harness.search import examples
from attnfuzz.harness.search.drawn_part import EVERYTHING, DrawnPart
from attnfuzz.harness.search.examples import AT_ONCE, check_drawn, drawn_capability, drawn_cases, run_examples
from attnfuzz.harness.search.restrict import NoSuchPart
from attnfuzz.reference.case import Case
from attnfuzz.reference.edges import edges_of
from attnfuzz.reference.features import TABLE

SCRIPT = """
import sys

from hypothesis import strategies

from attnfuzz.harness.search.examples import run_examples

if sys.argv[1:]:
    import numbers_of_a_user
run_examples(strategies.integers(0, 10**9), lambda number: print(number), examples=300, seed_of=7)
"""
NUMBERS = range(600_000_000, 600_000_050)


@pytest.mark.slow
def test_a_seed_draws_the_same_beside_modules_full_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "numbers_of_a_user.py").write_text("\n".join(f"N{number} = {number}" for number in NUMBERS))
    (tmp_path / "script.py").write_text(SCRIPT)
    drawn = [
        subprocess.run(
            [sys.executable, "script.py", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for arguments in ([], ["with them"])
    ]
    assert drawn[0] == drawn[1]
    assert len(drawn[0].splitlines()) >= 300
    assert not (tmp_path / ".hypothesis").exists()


class StoppedError(Exception):
    """Raised by a visit."""


@pytest.mark.parametrize("last", [1, AT_ONCE, AT_ONCE + 4, 2 * AT_ONCE + 1])
def test_an_exception_of_a_visit_ends_the_visits(last: int) -> None:
    cause, visited = ValueError("why"), list[Case]()

    def visit(case: Case) -> None:
        visited.append(case)
        if len(visited) == last:
            raise StoppedError from cause

    with pytest.raises(StoppedError) as caught:
        run_examples(fake_cases(), visit, examples=2 * AT_ONCE + 1, seed_of=1)
    assert len(visited) == last
    assert caught.value.__cause__ is cause


def test_calls_that_an_api_does_not_mention_are_neither_drawn_nor_run_again() -> None:
    cases: dict[bool, list[Case]] = {promised: [] for promised in (False, True)}
    for promised, drawn in cases.items():
        strategy = drawn_cases("torch_sdpa_any_scale", part=DrawnPart(promised=promised))
        run_examples(strategy, drawn.append, examples=30, seed_of=1)
    assert not any(map(edges_of, cases[True]))
    with_edges = [case for case in cases[False] if edges_of(case)]
    assert all(may_run(case, EVERYTHING) for case in cases[False])
    assert not any(may_run(case, DrawnPart(promised=True)) for case in with_edges)
    assert all(may_run(case, DrawnPart(promised=True)) for case in cases[True])


def test_only_the_named_modes_and_dtypes_are_drawn_and_run_again() -> None:
    part, drawn = DrawnPart(modes=("decode",), dtypes=("float32",)), list[Case]()
    run_examples(drawn_cases("trtllm_mha", part=part), drawn.append, examples=20, seed_of=1)
    assert {(*case.modes, case.geometry.dtype) for case in drawn} == {
        ("decode",) * len(case.steps) + ("float32",) for case in drawn
    }
    assert all(may_run(case, part) for case in drawn)
    assert not any(may_run(case, DrawnPart(modes=("extend",))) for case in drawn)


def test_a_mode_or_dtype_that_no_case_has_is_refused_with_those_that_they_have() -> None:
    with pytest.raises(NoSuchPart, match="trtllm_mha has no verify: give --mode one of decode, target_verify"):
        drawn_capability("trtllm_mha", DrawnPart(modes=("verify",)))
    with pytest.raises(NoSuchPart, match="leave --mode, --dtype, --only and --without out"):
        drawn_capability("native:sparse", DrawnPart(dtypes=("float32",)))


def test_only_cases_with_the_named_features_are_drawn_and_run_again() -> None:
    part, drawn = DrawnPart(only=("window", "sinks"), never=("replay",)), list[Case]()
    run_examples(drawn_cases("trtllm_mha", part=part), drawn.append, examples=20, seed_of=1)
    assert len(drawn) == 20
    for case in drawn:
        words = TABLE.words_of(case)
        assert {"window", "sinks"} <= words
        assert "replay" not in words
        assert may_run(case, part)
        assert not may_run(case, DrawnPart(never=("sinks",)))


@pytest.mark.parametrize(
    ("backend", "part", "message"),
    [
        ("trtllm_mha", DrawnPart(only=("windw",)), "--only: unknown feature 'windw': did you mean 'window'"),
        ("trtllm_mha", DrawnPart(never=("sink",)), "--without: unknown feature 'sink': did you mean 'sinks'"),
        ("trtllm_mha", DrawnPart(only=("mask=tree",)), "no such cases: mask=tree: the backend does not have this mask"),
        (
            "torch_sdpa",
            DrawnPart(never=("16 bits", "dtype=float32")),
            "without 16 bits, dtype=float32, no dtype is left",
        ),
        ("native:sparse", DrawnPart(only=("window",)), "leave --mode, --dtype, --only and --without out"),
    ],
)
def test_features_that_no_case_has_are_refused(backend: str, part: DrawnPart, message: str) -> None:
    with pytest.raises(NoSuchPart, match=message):
        drawn_capability(backend, part)


def test_features_that_exclude_each_other_are_refused_before_a_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "drawn_cases", lambda *_, **__: fake_cases().filter(lambda _: False))
    with pytest.raises(NoSuchPart, match="no case of trtllm_mha with sinks and without window was drawn"):
        check_drawn("trtllm_mha", DrawnPart(only=("sinks",), never=("window",)))
    check_drawn("trtllm_mha", EVERYTHING)
