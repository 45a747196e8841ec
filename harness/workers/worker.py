"""The life of a worker: take a request, run the handler, reply, until the parent hangs up or the worker dies."""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

from attnfuzz.harness.workers import channel
from attnfuzz.harness.workers.channel import ChannelClosed, Message
from attnfuzz.harness.workers.journal import Journal

Handler = Callable[[bytes, Journal], bytes]
"""Turns a request into a reply. It writes the journal before it does what may kill the worker."""

FaultRecorder = Callable[[int], None]
"""Notes the fault that ends the process at the address that it is given."""

_DEADLY = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def serve(
    handler: Handler, requests: socket.socket, journal: Journal, output: int, recorder: FaultRecorder | None
) -> None:
    """Answer requests until the parent hangs up. `output` is the file that takes stdout and stderr."""
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
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


def _answer(handler: Handler, request: bytes, journal: Journal) -> tuple[Message, bytes]:
    try:
        return Message.REPLY, handler(request, journal)
    except BaseException:  # noqa: BLE001 - whatever it is, also SystemExit, the parent has to hear of it
        return Message.ERROR, traceback.format_exc().encode()
