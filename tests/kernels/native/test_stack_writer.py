"""The handler that writes native stacks; what becomes of them is tested in tests/harness/workers/test_stacks.py."""

import signal

import pytest

from attnfuzz.kernels.native.stack_writer import install_stack_writer


@pytest.mark.parametrize(("number", "descriptor"), [(0, 1), (65, 1), (signal.SIGUSR1, -1)])
def test_its_arguments_are_checked(number: int, descriptor: int) -> None:
    with pytest.raises(ValueError, match=r"must be|is a number"):
        install_stack_writer(number, descriptor)
