"""A signal handler that writes the native stack of the thread that it interrupts."""

from attnfuzz.kernels.native import build


def install_stack_writer(signal: int, descriptor: int) -> None:
    """Append the stack of each thread that gets `signal` to the file `descriptor`.

    It has a line `thread ID`, a line of glibc's backtrace_symbols_fd for each frame, and a line `end`. Then an earlier
    handler is called. Without glibc nothing is written. Raises ValueError for a number that is no signal, or a negative
    descriptor.
    """
    build.load().install_stack_writer(signal, descriptor)
