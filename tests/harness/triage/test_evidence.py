"""Rows that a ragged call leaves unwritten, and who reads them."""

from collections.abc import Callable

import pytest
from harness_cases import calls_of, chunked_case
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage.evidence import reads_of_unwritten_rows
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.reference.calls import Buffer, Call, CallCase, View

MERGE, FIXUP, RAGGED = NATIVE.merge_state_in_place.name, NATIVE.fixup.name, NATIVE.ragged.name


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
