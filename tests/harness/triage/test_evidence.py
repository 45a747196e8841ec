"""Rows that a ragged call leaves unwritten, and who reads them."""

from collections.abc import Callable
from typing import NoReturn

import pytest
from harness_cases import calls_of, chunked_case, decode_case
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage.evidence import collect, reads_of_unwritten_rows
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import Buffer, Call, CallCase, View

MERGE, FIXUP, RAGGED = NATIVE.merge_state_in_place.name, NATIVE.fixup.name, NATIVE.ragged.name


class Unrecorded:
    """Stands for a runner of a backend whose kernels are its own code."""

    def renew(self) -> None:
        pass

    def verdict(self, case: AnyCase) -> NoReturn:
        raise AssertionError(case)

    def trace(self, case: AnyCase) -> tuple[Verdict, CallCase | None]:
        failure = Observation(kind=Kind.NOT_FINITE, place="out", message="it holds nan", kernel="reduce_segments")
        return Verdict(observations=(failure,)), None


def test_calls_of_a_backends_own_kernels_are_reported_as_not_recorded() -> None:
    obstacles = collect(decode_case("trtllm_mha"), Unrecorded()).obstacles
    assert obstacles == ("reduce_segments is code of the backend itself, whose calls are not recorded",)


@pytest.mark.slow
def test_the_merge_that_reads_them_is_reported_with_the_row_and_the_request(runner: Runner) -> None:
    calls = calls_of(runner, chunked_case("trtllm_mla@22688-before"))
    (index, breach), *_ = reads_of_unwritten_rows(calls)
    assert (calls.calls[index - 1].op, calls.calls[index].op) == (RAGGED, MERGE)
    assert breach.request == 2
    assert f"call {index - 1} ({RAGGED}) leaves row 5 of its output unwritten, since request 2" in breach.text
    assert f"call {index} ({MERGE}) reads it" in breach.text


def test_a_fixup_between_the_two_repairs_them(runner: Runner) -> None:
    calls = calls_of(runner, chunked_case("trtllm_mla"))
    assert FIXUP in {call.op for call in calls.calls}
    assert list(reads_of_unwritten_rows(calls)) == []
    without = replace(calls, calls=tuple(call for call in calls.calls if call.op != FIXUP))
    assert list(reads_of_unwritten_rows(without))


def changed(calls: CallCase, op: str, change: Callable[[Call], Call]) -> CallCase:
    return replace(calls, calls=tuple(change(call) if call.op == op else call for call in calls.calls))


def test_rows_written_between_calls_are_taken_as_results(runner: Runner) -> None:
    calls = calls_of(runner, chunked_case("trtllm_mla@22688-before"))
    dtypes = {buffer.name: buffer.dtype for buffer in calls.buffers}

    def overwritten(call: Call) -> Call:
        out = call.arguments["v_other"]
        assert isinstance(out, View)
        return replace(call, writes=(Buffer(name=out.buffer, dtype=dtypes[out.buffer], size=1, values=(0,)),))

    assert list(reads_of_unwritten_rows(changed(calls, MERGE, overwritten))) == []


def test_a_kernel_that_has_the_lengths_on_the_cpu_leaves_none(runner: Runner) -> None:
    def mirrored(call: Call) -> Call:
        lengths = dict.fromkeys(("q_seq_lens_cpu", "kv_seq_lens_cpu"), call.arguments["seq_lens"])
        return replace(call, arguments={**call.arguments, **lengths})

    calls = calls_of(runner, chunked_case("trtllm_mla@22688-before"))
    assert list(reads_of_unwritten_rows(changed(calls, RAGGED, mirrored))) == []
