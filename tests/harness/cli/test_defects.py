"""`attnfuzz defects`, and the other commands on a backend with a planted defect."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import Attnfuzz
from refusals import refused

from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name

NAME = "v_scale_a_thousandth_off"
PLAIN = "causal_limit_one_late"
"""Wrong by far, and in most cases: soon minimized."""
BACKEND = next(backend_name(defect) for defect in DEFECTS if defect.name == PLAIN)


@pytest.mark.slow
def test_all_defects_are_listed_with_their_sources(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("defects")
    assert ran.code == 0
    assert ran.out == attnfuzz("defects", "list").out
    assert max(map(len, ran.out.splitlines())) <= 80
    words = " ".join(ran.out.split())
    for defect in DEFECTS:
        assert defect.name in words
    assert "#22688" in words


@pytest.mark.slow
def test_a_defect_is_killed_pinned_and_written_down(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    # Shrunk or not, the case is one that fails.
    monkeypatch.setattr("attnfuzz.harness.cli.selftests.defects.PIN_SECONDS", 0.5)
    ran = attnfuzz("defects", "run", PLAIN, "--examples", "100", "--jobs", "1", "--json", "found.json", "--pin", "pins")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0] == "Searching 1 defect: 100 examples each, seed 1."
    assert ran.out.splitlines()[-1] == "1 of 1 killed"
    assert re.search(r"family +planted +killed +examples \(median\) +\(95%\)\nattention +1 +1 +\d+ +\d+\n", ran.out)
    found = json.loads(Path("found.json").read_text())
    assert (found["killed"], found["defects"], found["seeds"]) == (1, 1, [1])
    (search,) = found["searches"]
    pin = load_pin(Path("pins"), PLAIN)
    assert pin is not None
    assert (search["defect"], search["kill"]["by"]) == (PLAIN, pin.killed_by)
    with Runner([BACKEND]) as runner:
        assert runner.verdict(pin.case).failures[0].kind is pin.kind


@pytest.mark.slow
def test_a_judge_without_tiers_kills_nothing_that_guards_do_not_see(attnfuzz: Attnfuzz) -> None:
    blind = [argument for tier in Tier for argument in ("--without", tier.value)]
    ran = attnfuzz("defects", "run", NAME, "--examples", "12", "--jobs", "1", "--seeds", "2", *blind)
    assert ran.code == 1, ran.err
    assert "12 examples each, seeds 1 to 2." in ran.out
    assert ran.out.splitlines()[-1] == "0 of 1 killed"


def test_an_unknown_defect_gets_the_closest(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("defects", "run", "v_scale_a_thousand_off")
    refused(ran, f"no defect is called 'v_scale_a_thousand_off': did you mean {NAME}")
    assert "attnfuzz defects list names them" in attnfuzz("defects", "run", "???").err


@pytest.mark.slow
def test_a_job_that_fails_is_an_error_and_no_survivor(attnfuzz: Attnfuzz, monkeypatch: Any) -> None:
    # Jobs are processes that read the environment: they find no compiler, and no compiled kernels.
    monkeypatch.setattr("attnfuzz.harness.campaign.run.prepare", lambda *_: None)
    monkeypatch.setenv("ATTNFUZZ_CACHE", "cache")
    monkeypatch.setenv("CXX", "no-such-compiler")
    ran = attnfuzz("defects", "run", NAME, "--examples", "12", "--jobs", "1")
    assert ran.code == 2
    assert "no-such-compiler" in ran.err
    assert "can't run here" in ran.err
    assert "killed" not in ran.out


def test_planted_defects_are_no_backends_to_choose_from(attnfuzz: Attnfuzz) -> None:
    assert "+" not in attnfuzz("backends", "-q").out
    assert "+" not in attnfuzz("fuzz", "--backend", "trtllm_mah").err.replace("'trtllm_mah'", "")


def test_an_unknown_planted_defect_gets_the_closest(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("fuzz", "--backend", "trtllm_mha+v_scale_a_thousand_off")
    assert ran.code == 2
    assert f"did you mean trtllm_mha+{NAME}" in ran.err
    assert len(ran.err.splitlines()) == 1
