"""The life of a worker: take a request, run the handler, reply, until the parent hangs up or the worker dies."""

import contextlib
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from attnfuzz.harness.workers import channel
from attnfuzz.harness.workers.channel import ChannelClosed, Message
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.kernels.library_cache import BuildFailed, NoCompiler
from attnfuzz.kernels.sglang.errors import ReleaseError

Handler = Callable[[bytes, Journal], bytes]
"""Turns a request into a reply. It writes the journal before it does what may kill the worker."""

Begin = Callable[[], object]
"""What only a worker may do, and not the process that it is forked from: create a CUDA context, start threads."""

FaultRecorder = Callable[[int], None]
"""Notes the fault that ends the process at the address that it is given."""

FOR_THE_USER = (BuildFailed, NoCompiler, ReleaseError)
"""Errors that a user can mend: their message is one line that says what to do."""

_parent: socket.socket | None = None
"""The channel of the worker that this process is."""

_DEADLY = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def serve(
    handler: Handler,
    requests: socket.socket,
    journal: Journal,
    output: int,
    *,
    begin: Begin,
    recorder: FaultRecorder | None,
) -> None:
    """Begin, then answer requests until the parent hangs up. `output` is the file that takes stdout and stderr."""
    global _parent  # noqa: PLW0603 - a process has one life as a worker, and may leave it from anywhere
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    try:
        begin()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent has to hear why there is no worker
        channel.send(requests, *_told(error))
        return
    # Collecting what was imported would only cost time.
    gc.freeze()
    _parent = requests
    # Libraries install handlers that print backtraces, for up to a second: the parent explains a death better.
    for deadly in _DEADLY:
        signal.signal(deadly, signal.SIG_DFL)
    if recorder is not None:
        recorder(journal.fault_address)
    channel.send(requests, Message.READY, str(os.getpid()).encode())
    while True:
        try:
            _, request = channel.receive(requests)
        except ChannelClosed:
            return
        os.ftruncate(output, 0)
        journal.clear()
        message, reply = _answer(handler, request, journal)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            channel.send(requests, message, reply)
        except ChannelClosed:
            return


def leave(exit_code: int) -> NoReturn:
    """End this worker at once, in the middle of a request.

    The parent is told first: until a process that used a GPU is gone, its driver puts things in order for a while.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if _parent is not None:
        with contextlib.suppress(ChannelClosed):
            channel.send(_parent, Message.LEAVING, str(exit_code).encode())
    os._exit(exit_code)


def _answer(handler: Handler, request: bytes, journal: Journal) -> tuple[Message, bytes]:
    try:
        return Message.REPLY, handler(request, journal)
    except BaseException as error:  # noqa: BLE001 - whatever it is, also SystemExit, the parent has to hear of it
        return _told(error)


def _told(error: BaseException) -> tuple[Message, bytes]:
    if isinstance(error, FOR_THE_USER):
        return Message.REFUSAL, str(error).encode()
    return Message.ERROR, "".join(traceback.format_exception(error)).encode()
