"""`attnfuzz bugs`: what is listed, shown and run, and what its filters leave."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import fake_nvml
import pytest
from command_line import Attnfuzz
from refusals import refused

from attnfuzz.harness.reported.bugs import Bug, load_bugs, projects
from attnfuzz.harness.reported.counterparts import shown_on
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.defects.defect import BugClass

SHOWN = "sglang-21649"
ELSEWHERE = "vllm-50781"
ON_GPU = "sglang-31667"


PASSED = Verdict(rows=1)
FAULT = Verdict(observations=(Observation(kind=Kind.ILLEGAL_ACCESS, place="seq_lens", message="read at seq_lens"),))
MISMATCH = Verdict(observations=(Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="1 instead of 2"),))


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the command judge cases by these verdicts of their backends, and run nothing."""

    def judge(verdicts: dict[str, Verdict]) -> None:
        runner = SimpleNamespace(verdict=lambda case: verdicts[case.backend], renew=lambda: None)
        monkeypatch.setattr("attnfuzz.harness.cli.selftests.bugs.Runner", lambda *_, **__: nullcontext(runner))

    return judge


def bug(name: str) -> Bug:
    return next(each for each in load_bugs() if each.name == name)


def listed(ran: Any) -> set[str]:
    """The bugs that have a line of their own."""
    first = {line.split()[0] for line in ran.out.splitlines() if line.strip() and not line.startswith(" ")}
    return first & {each.name for each in load_bugs()}


@pytest.mark.slow
def test_all_bugs_are_listed_within_80_columns(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bugs")
    assert ran.code == 0
    assert ran.out == attnfuzz("bugs", "list").out
    assert listed(ran) == {each.name for each in load_bugs()}
    assert max(map(len, ran.out.splitlines())) <= 80


def test_the_last_line_counts_the_bugs_that_are_listed(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bugs", SHOWN, ELSEWHERE)
    assert ran.out.splitlines()[-1] == "2 bugs: 1 can be run here, 1 can't."


@pytest.mark.parametrize("project", projects())
def test_bugs_of_a_project_are_listed(attnfuzz: Attnfuzz, project: str) -> None:
    ran = attnfuzz("bugs", "--project", project)
    assert listed(ran) == {each.name for each in load_bugs() if each.project == project}


def test_bugs_of_a_class_are_listed(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bugs", "list", "--class", "planned-then-padded")
    wanted = {each.name for each in load_bugs() if each.bug_class is BugClass.PLANNED_THEN_PADDED}
    assert listed(ran) == wanted


@pytest.mark.parametrize(("option", "runnable"), [("--runnable", True), ("--not-runnable", False)])
def test_bugs_that_can_be_run_here_are_reported_from_others(attnfuzz: Attnfuzz, option: str, *, runnable: bool) -> None:
    ran = attnfuzz("bugs", "list", option)
    assert listed(ran) == {each.name for each in load_bugs() if (each.missing is None) is runnable}


@pytest.mark.slow
def test_a_bug_in_a_gpu_kernel_is_listed_with_the_gpu_it_needs(
    attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible, "missing", lambda *_: "needs a Hopper")
    ran = attnfuzz("bugs", ON_GPU)
    assert "not here: needs a Hopper; shown by xqa" in " ".join(ran.out.split())
    assert ran.out.splitlines()[-1] == "1 bug: 0 can be run here, 1 can't."
    assert "needs a Hopper" in attnfuzz("bugs", "show", ON_GPU).out
    ran = attnfuzz("bugs", "run", ON_GPU)
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "0 bugs shown, 1 can't run here."


@pytest.mark.parametrize(
    ("verdict", "words", "code"),
    [
        (MISMATCH, "before xqa: fails, OutputMismatch: 1 instead of 2", 0),
        (PASSED, "before xqa: passes", 1),
        (FAULT, "before xqa: fails, IllegalAccess: read at seq_lens", 1),
        (Verdict(unsupported="XQA does not compile"), "before xqa: XQA does not compile", 1),
    ],
)
def test_a_bug_of_a_gpu_s_kernel_needs_no_run_without_it(
    attnfuzz: Attnfuzz,
    judged: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    verdict: Verdict,
    words: str,
    code: int,
) -> None:
    monkeypatch.setattr(visible, "missing", lambda *_: None)
    judged({"xqa": verdict})
    ran = attnfuzz("bugs", "run", ON_GPU)
    assert ran.code == code
    assert words in " ".join(ran.out.split())
    assert "after xqa" not in " ".join(ran.out.split())


def test_filters_and_names_hold_together(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bugs", "list", "--project", "vllm", "--not-runnable", SHOWN, ELSEWHERE)
    assert listed(ran) == {ELSEWHERE}


def test_a_bug_is_shown_with_all_that_is_known_and_its_case(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bugs", "show", SHOWN)
    assert ran.code == 0
    known = bug(SHOWN)
    words = " ".join(ran.out.split())
    for text in (known.title, known.symptom, known.bug_class, *known.sources, known.fixed_in, known.shown_by):
        assert text in words
    assert "32 query heads on 2 KV heads" in words
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_bug_that_cannot_run_here_is_shown_with_the_reason(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bugs", "show", ELSEWHERE)
    assert ran.code == 0
    assert f"not here  {bug(ELSEWHERE).why_not_here}" in ran.out
    assert "shown by" not in ran.out


@pytest.mark.slow
def test_a_bug_is_run_before_and_after_its_fix(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("bugs", "run", SHOWN, ELSEWHERE)
    assert ran.code == 0, ran.out
    words = " ".join(ran.out.split())
    assert "before trtllm_mha@21649-before: fails, IllegalAccess: read at cum_seq_lens_q" in words
    assert "after trtllm_mha: passes" in words
    assert f"{SHOWN} cpu IllegalAccess at cum_seq_lens_q passes" in words
    assert f"{ELSEWHERE} not here: {bug(ELSEWHERE).why_not_here}" in words
    assert ran.out.splitlines()[-1] == "1 bug shown, 1 can't run here."


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (FAULT, PASSED, True),
        (Verdict(observations=(*MISMATCH.observations, *FAULT.observations)), PASSED, True),
        (MISMATCH, PASSED, False),
        (PASSED, PASSED, False),
        (FAULT, MISMATCH, False),
        (FAULT, Verdict(unsupported="trtllm_mha does not support that"), False),
        (Verdict(unsupported="trtllm_mha@21649-before does not support that"), PASSED, False),
    ],
    ids=[
        "fails as reported",
        "fails so among others",
        "fails in another way",
        "passes before",
        "fails after",
        "unsupported after",
        "unsupported before",
    ],
)
def test_a_bug_is_shown_if_it_fails_as_reported_and_passes_after(
    attnfuzz: Attnfuzz, judged: Callable[..., None], before: Verdict, after: Verdict, *, shown: bool
) -> None:
    judged({"trtllm_mha@21649-before": before, "trtllm_mha": after})
    ran = attnfuzz("bugs", "run", SHOWN)
    assert ran.code == (0 if shown else 1)
    assert ran.out.splitlines()[-1] == ("1 bug shown, 0 can't run here." if shown else f"1 bug not shown: {SHOWN}.")


def test_a_case_that_the_fixed_backend_rejects_says_why(attnfuzz: Attnfuzz, judged: Callable[..., None]) -> None:
    judged({"trtllm_mha@21649-before": FAULT, "trtllm_mha": Verdict(unsupported="trtllm_mha does not support that")})
    ran = attnfuzz("bugs", "run", SHOWN)
    assert "after   trtllm_mha: trtllm_mha does not support that" in ran.out
    assert f"{SHOWN}  cpu  IllegalAccess at seq_lens  can't run" in ran.out


def test_bugs_that_cannot_run_here_are_no_failure(attnfuzz: Attnfuzz, judged: Callable[..., None]) -> None:
    judged({})
    ran = attnfuzz("bugs", "run", ELSEWHERE)
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "0 bugs shown, 1 can't run here."


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        *((f"{each} sglang-21648", ("'sglang-21648'", "did you mean", SHOWN)) for each in ("list", "run", "show")),
        ("run nonsense", ("no bug is called 'nonsense'", "attnfuzz bugs list names them")),
        ("--class luck", ("'luck'", *BugClass)),
        ("run --project luck", ("'luck'", *projects())),
        (f"run --project vllm {SHOWN}", ("no bug matches", "attnfuzz bugs list")),
        ("show", ("NAME",)),
    ],
)
def test_an_unknown_bug_is_refused_with_the_known_ones(
    attnfuzz: Attnfuzz, arguments: str, parts: tuple[str, ...]
) -> None:
    refused(attnfuzz("bugs", *arguments.split()), *parts)


def test_on_a_gpu_a_bug_is_run_on_its_kernels_and_others_on_native_ones(
    attnfuzz: Attnfuzz, judged: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch, [fake_nvml.H200])
    monkeypatch.setattr(visible, "missing", lambda *_: None)
    judged(
        {
            "hopper:trtllm_mha@24566": FAULT,
            "hopper:trtllm_mha_as_served": PASSED,
            "trtllm_mla@22688-before": MISMATCH,
            "trtllm_mla": PASSED,
        }
    )
    ran = attnfuzz("bugs", "run", "--device", "cuda", "sglang-24566", "sglang-22688")
    assert ran.code == 0
    words = " ".join(ran.out.split())
    assert "its case, with a geometry that the backend supports before hopper:trtllm_mha@24566: fails" in words
    assert "after hopper:trtllm_mha_as_served: passes" in words
    assert "on native kernels: trtllm_mla@22688-before has no kernels for this GPU" in words
    assert "sglang-24566 cuda IllegalAccess at seq_lens passes" in words
    assert "sglang-22688 cpu OutputMismatch at out passes" in words


@pytest.mark.slow
def test_a_bug_that_nothing_shows_on_a_gpu_is_not_shown(
    attnfuzz: Attnfuzz, judged: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch, [fake_nvml.H200])
    monkeypatch.setattr(visible, "missing", lambda *_: None)
    monkeypatch.setattr("attnfuzz.harness.cli.selftests.bugs.shown_on", partial(shown_on, examples=5))
    judged({"hopper:trtllm_mha@24566": PASSED, "hopper:trtllm_mha": PASSED})
    ran = attnfuzz("bugs", "run", "--device", "cuda", "sglang-24566")
    assert ran.code == 1
    assert "neither its case nor any of 5 drawn cases fails as reported" in ran.out
    assert "1 bug not shown: sglang-24566." in ran.out


def test_without_a_gpu_there_is_nothing_to_run_bugs_on(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.install(monkeypatch)
    refused(attnfuzz("bugs", "run", "--device", "cuda", SHOWN), "--device cuda needs an NVIDIA GPU")


def test_on_the_cpu_a_bug_of_a_gpu_s_kernel_is_left_out_where_there_is_one(
    attnfuzz: Attnfuzz, judged: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.install(monkeypatch, [fake_nvml.H200])
    monkeypatch.setattr(visible, "missing", lambda *_: None)
    judged({"trtllm_mha@21649-before": FAULT, "trtllm_mha": PASSED})
    ran = attnfuzz("bugs", "run", "--device", "cpu", SHOWN, "flashinfer-xqa-bmm2-scale")
    assert ran.code == 0, ran.out
    words = " ".join(ran.out.split())
    assert "flashinfer-xqa-bmm2-scale not here: it is in a GPU kernel, and --device cpu was given" in words
    assert ran.out.splitlines()[-1] == "1 bug shown, 1 can't run here."
