"""Stray accesses in words, and the argument from which they follow."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage.access import explain_access
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import Buffer, CallCase

LOADED = case_file.load(Path(__file__).parents[1] / "short_seq_lens.json")
assert isinstance(LOADED, CallCase)
SHORT: CallCase = LOADED
"""A batch of three, with lengths for two."""


def with_values(case: CallCase, name: str, *values: int) -> CallCase:
    buffers = tuple(
        Buffer(name=name, dtype=buffer.dtype, size=len(values), values=values) if buffer.name == name else buffer
        for buffer in case.buffers
    )
    return replace(case, buffers=buffers)


def of_two(case: CallCase) -> CallCase:
    """The call, for a batch of two, which it has the metadata for."""
    (call,) = case.calls
    return replace(case, calls=(replace(call, arguments={**call.arguments, "batch_size": 2}),))


def fault(runner: Runner, case: CallCase) -> Observation:
    (observation,) = runner.verdict(case).failures
    assert observation.kind is Kind.ILLEGAL_ACCESS
    return observation


@pytest.mark.slow
def test_an_access_past_a_tensor_is_reported_with_the_request_it_would_belong_to(runner: Runner) -> None:
    explained = explain_access(SHORT, fault(runner, SHORT))
    assert explained.arguments == ("seq_lens",)
    assert explained.sentences[0].startswith("It reads 0 bytes past the end of seq_lens, int32 [2], where request 2")


def test_a_wild_page_id_is_found_in_the_page_table(runner: Runner) -> None:
    case = with_values(of_two(SHORT), "block_tables", 1, 1 << 20)
    explained = explain_access(case, fault(runner, case))
    assert explained.arguments == ("block_tables",)
    assert "page 1048576 of kv_cache, which has 3: block_tables[1, 0] is 1048576" in explained.sentences[0]


def test_the_call_of_several_that_was_running_is_known(runner: Runner) -> None:
    case = replace(SHORT, calls=(*of_two(SHORT).calls, *SHORT.calls))
    observation = fault(runner, case)
    assert observation.call == 1
    assert explain_access(case, observation).arguments == ("seq_lens",)


def test_an_observation_of_an_earlier_version_has_neither_call_nor_access() -> None:
    old = b'{"kind":"IllegalAccess","place":"out","message":"read at out","step":0,"mode":"","kernel":"decode"}'
    observation = msgspec.json.decode(old, type=Observation)
    assert (observation.call, observation.access) == (-1, None)
    assert explain_access(SHORT, observation).sentences == ()
