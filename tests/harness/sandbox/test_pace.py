"""Time limits of cases."""

import pytest

from attnfuzz.harness.sandbox.pace import CasePace
from attnfuzz.harness.workers.patience import Patience
from attnfuzz.reference.device import Device


def known(seconds: float, *, device: Device = Device.CPU, most: float = 30.0, factor: float = 1.0) -> Patience:
    """The limits of a backend whose cases take this long."""
    pace = CasePace(most, environment={})
    for _ in range(100):
        pace.add("mine", seconds)
    return pace.patience("mine", device, factor)


def test_a_hang_of_a_quick_backend_is_noticed_in_seconds() -> None:
    assert known(0.01) == Patience(5.0, 30.0, 600.0)
    assert known(0.01, device=Device.CUDA) == Patience(10.0, 30.0, 600.0)


def test_the_limit_follows_the_median_up_to_the_longest_silence() -> None:
    assert known(0.2).least == pytest.approx(10.0)
    assert known(2.0) == Patience(30.0, 30.0, 600.0)


def test_the_first_cases_have_more_time() -> None:
    pace = CasePace(30.0, environment={})
    assert pace.patience("mine", Device.CPU, 1.0).least == 10.0
    assert pace.patience("mine", Device.CUDA, 1.0).least == 20.0
    for _ in range(50):
        pace.add("another", 0.01)
    assert pace.patience("mine", Device.CPU, 1.0).least == 10.0


def test_the_time_limit_follows_from_the_capability_and_the_extra_time_of_a_run() -> None:
    assert known(0.01, factor=20.0) == Patience(100.0, 600.0, 12000.0)
    assert CasePace(0.2, environment={}).patience("mine", Device.CPU, 1.0, more=30.0) == pytest.approx(
        (30.2, 30.2, 604.0)
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"LD_PRELOAD": "/usr/lib/libasan.so.8"},
        {"LD_PRELOAD": "libc_malloc_debug.so.0"},
        {"CUDA_INJECTION64_PATH": "/opt/libsanitizer-collection.so"},
    ],
)
def test_under_a_sanitizer_no_limit_is_shortened(environment: dict[str, str]) -> None:
    pace = CasePace(30.0, environment=environment)
    for _ in range(100):
        pace.add("mine", 0.01)
    assert pace.patience("mine", Device.CPU, 1.0).least == 30.0
