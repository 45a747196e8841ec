"""A case made by hand is a plain case of the backend with the fields that were given."""

from pathlib import Path

import pytest
from command_line import Attnfuzz
from refusals import refused

from attnfuzz.harness.cli.new_case import new_case
from attnfuzz.harness.cli.terminal import BadInput
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case, Mode, Request
from attnfuzz.reference.dtypes import DType


def made(*, backend: str = "torch_sdpa", mode: str | None = None, q: str = "", kv: str = "", **fields: str) -> Case:
    lengths = ([int(each) for each in text.split(",") if each] for text in (q, kv))
    queries, keys = lengths
    case = new_case(backend, mode=mode, queries=queries, keys=keys, fields=fields)
    assert isinstance(case, Case)
    return case


def test_lengths_are_those_of_the_requests_of_the_only_step() -> None:
    (step,) = made(mode="extend", q="2,3", kv="5").steps
    assert (step.mode, step.requests) == (Mode.EXTEND, (Request(0, 2, 5), Request(1, 3, 5)))
    assert made(backend="trtllm_mha", mode="target_verify", q="3", kv="4").steps[0].tokens_per_request == 3


def test_fields_are_given_by_their_names_or_paths() -> None:
    case = made(page_size="2", dtype="float32", **{"pages.spare": "3"})
    assert (case.geometry.page_size, case.geometry.kv_dtype, case.pages.spare) == (2, DType.FLOAT32, 3)
    assert made(backend="trtllm_mha", sinks="true").geometry.sinks


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"snks": "true"}, "no field 'snks': did you mean sinks"),
        ({"sinks": "true"}, "torch_sdpa does not support attention sinks"),
        ({"page_size": "many"}, r"Expected `int`, got `str` - at `\$.geometry.page_size`"),
        ({"mode": "verify"}, "no plain case in verify: its modes are decode"),
        ({"q": "1,2", "kv": "5,6,7"}, "--q has 2 lengths and --kv 3"),
        ({"mode": "decode", "q": "2"}, "an impossible case"),
    ],
)
def test_fields_that_a_case_can_not_have_are_refused_with_the_reason(given: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        made(**given)


# It needs a worker.
@pytest.mark.slow
def test_a_new_case_is_written_and_run(attnfuzz: Attnfuzz) -> None:
    line = ["new", "trtllm_mha", "--mode", "decode", "--kv", "4", "--set", "page_size=2"]
    ran = attnfuzz(*line)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "case.json passes on trtllm_mha.")
    assert case_file.load(Path("case.json")).modes == ("decode",)
    refused(attnfuzz(*line), "case.json exists", "--force")
