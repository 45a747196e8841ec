"""The case that a worker judges before it is ready."""

from attnfuzz.harness.inside.cuda_worker import judge_one
from attnfuzz.reference.device import Device


def test_it_is_judged_and_passes() -> None:
    verdict = judge_one(Device.CPU)
    assert (verdict.observations, verdict.unsupported, verdict.rows) == ((), None, 1)
    assert min(verdict.seconds.values()) > 0
