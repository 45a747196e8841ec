"""What goes between a worker and its parent: messages over a stream socket, and a pipe for what the worker prints.

A message is a token, a kind, a size, and bytes. The worker's end lies open in the process of a kernel, which may write
to it or close it by accident. So each request comes with a random token, and what does not begin with it is no answer.
"""

import os
import socket
import struct
import time
from enum import IntEnum
from typing import NamedTuple

TOKEN_BYTES = 8

UNASKED = bytes(TOKEN_BYTES)
"""The token of what a worker sends before its first request."""

MOST_BYTES = 1 << 26
"""Of a message from a worker, at most. The largest that are sent are calibrations, of some MB; verdicts have kB."""

LOST = 100
"""Exit code of a worker that can't send its answer: its end of the channel was closed or replaced."""

_HEAD = struct.Struct(f"<{TOKEN_BYTES}sBQ")
_CHUNK = 1 << 16
"""Bytes to read at a time: what a pipe holds, by default."""


class MessageKind(IntEnum):
    """What a message is: REQUEST goes to the worker, the others come from it.

    READY is the first, with the worker's process id and whether faults are recorded; ERROR holds the traceback of a
    handler that raised, or, as the first, of what kept the worker from beginning. REFUSAL is as ERROR for what a user
    can fix, and holds one line. LEAVING is the last of a worker that ends itself, with its exit code. LAST_REPLY is as
    REPLY, from a worker that has to be replaced: something in its process could not be undone.
    """

    READY = 1
    REQUEST = 2
    REPLY = 3
    ERROR = 4
    LEAVING = 5
    REFUSAL = 6
    LAST_REPLY = 7


class ChannelClosed(ConnectionError):
    """The other side is gone."""


class NoMessage(Exception):
    """What was received is no message of the other side's."""


class Received(NamedTuple):
    """A message, the token that it came with, and its bytes."""

    message: MessageKind
    token: bytes
    payload: bytes


def send(
    channel: socket.socket, message: MessageKind, payload: bytes, *, token: bytes, deadline: float | None = None
) -> None:
    """Send one message.

    Raises:
        ChannelClosed: when the other side is gone.
        TimeoutError: when the deadline passes.
        OSError: when this side was closed, or is no socket any more.

    """
    _limit(channel, deadline)
    try:
        channel.sendall(_HEAD.pack(token, message, len(payload)) + payload)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosed from error


def receive(channel: socket.socket, deadline: float | None = None, *, token: bytes | None = None) -> Received:
    """Wait for one message. `deadline` is a time.monotonic(); None waits for ever.

    With a `token`, nothing but a message from a worker that has it is received.

    Raises:
        ChannelClosed: when the other side is gone before the message is complete.
        NoMessage: when what comes has another token, no kind, or more than MOST_BYTES.
        TimeoutError: when the deadline passes.

    """
    received = _some(channel, _CHUNK, deadline)
    while len(received) < _HEAD.size:
        received += _some(channel, _CHUNK, deadline)
    sent, kind, size = _HEAD.unpack_from(received)
    if token is not None and (sent != token or size > MOST_BYTES):
        raise NoMessage
    try:
        message = MessageKind(kind)
    except ValueError:
        raise NoMessage from None
    parts = [received[_HEAD.size :]]
    missing = size - len(parts[0])
    while missing > 0:
        parts.append(_some(channel, missing, deadline))
        missing -= len(parts[-1])
    payload = b"".join(parts)
    if len(payload) > size:
        raise NoMessage
    return Received(message, sent, payload)


def _some(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    _limit(channel, deadline)
    try:
        received = channel.recv(size)
    except ConnectionResetError as error:
        raise ChannelClosed from error
    if not received:
        raise ChannelClosed
    return received


def _limit(channel: socket.socket, deadline: float | None) -> None:
    # A deadline that has passed must not turn into the 0 that means "don't block".
    channel.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-6))


_KEPT = 4096
"""Bytes of the end."""

_CHUNKS = 64
"""Most chunks to read at a time: a worker may never stop printing, and the parent has to check its deadline."""


class PrintedOutput:
    """A pipe that a worker prints into. It blocks while the pipe is full, so its parent drains it while it waits.

    `fd` is the end to wait on, `remote` the worker's.
    """

    def __init__(self) -> None:
        self.fd, self.remote = os.pipe()
        os.set_blocking(self.fd, False)
        self._end = b""

    def drain(self) -> bool:
        """Take what was printed. False once no process can print any more."""
        for _ in range(_CHUNKS):
            try:
                printed = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return True
            if not printed:
                return False
            self._end = (self._end + printed)[-_KEPT:]
        return True

    def forget(self) -> None:
        """Take what was printed so far, and forget it."""
        self.drain()
        self._end = b""

    def words(self) -> str:
        """The end of what was printed."""
        self.drain()
        return self._end.decode(errors="replace").strip()

    def hand_over(self) -> None:
        """Close the worker's end, which is on its way to the worker."""
        os.close(self.remote)

    def close(self) -> None:
        """Close the parent's end. What is printed from now on is lost."""
        os.close(self.fd)
