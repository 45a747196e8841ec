"""The report of a worker's death."""

import signal

import pytest

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.workers.journal import Fault, LaunchRecord
from attnfuzz.harness.workers.postmortem import Death, explain
from attnfuzz.reference.case import Guard

LENGTHS = Allocation("seq_lens", 1 << 46, 8, (2,), "int32", 4, (1,), Guard.RIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [(), ("seq_lens tells of 2 requests, the batch is 3",)])
def test_a_fault_names_the_preconditions_that_the_call_broke(broken: tuple[str, ...]) -> None:
    launch = LaunchRecord(step=0, mode="decode", kernel="k", scalars={}, tensors=[LENGTHS], broken=broken)
    observation = explain(
        Death(
            signal=signal.SIGSEGV,
            exit_code=None,
            hang=False,
            seconds=0.1,
            fault=Fault(signal.SIGSEGV, 1, (1 << 46) + 8, 1),
            entry=launch.encode(),
            output="",
        )
    )
    first, *rest = observation.message.splitlines()
    assert first.startswith("read at seq_lens: 0 bytes past the end")
    assert rest == [f"before that, the call broke its contract: {text}" for text in broken]
