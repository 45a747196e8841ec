"""Messages between a worker and its parent over a stream socket, and a pipe for the worker's output.

A message is a token, a kind, a size, and bytes. A kernel in the worker's process may write to the worker's end or close
it by accident. So each request has a random token, and only a message that begins with it is accepted as an answer.
"""

import os
import socket
import struct
import time
from enum import IntEnum
from typing import NamedTuple

TOKEN_BYTES = 8

UNASKED = bytes(TOKEN_BYTES)
"""The token of messages that a worker sends before its first request."""

MOST_BYTES = 1 << 26
"""Maximum size of a message from a worker. Calibrations have some MB, verdicts some kB."""

LOST = 100
"""Exit code of a worker that can't send its answer: its end of the channel was closed or replaced."""

_HEAD = struct.Struct(f"<{TOKEN_BYTES}sBQ")
_CHUNK = 1 << 16
"""Bytes to read at a time: a pipe's default capacity."""


class MessageKind(IntEnum):
    """The kind of a message: REQUEST goes to the worker, all others come from it.

    READY is the first, with the worker's process id and whether faults are recorded. ERROR holds the traceback of a
    handler that raised, or, as the first message, the reason why the worker can't start. REFUSAL is an ERROR that a
    user can fix, in one line. LEAVING is the last message of a worker that exits by itself, with its exit code.
    LAST_REPLY is a REPLY of a worker that must be replaced, because its process could not be restored. GPU_GONE has the
    reason why the GPU does not answer.
    """

    READY = 1
    REQUEST = 2
    REPLY = 3
    ERROR = 4
    LEAVING = 5
    REFUSAL = 6
    LAST_REPLY = 7
    GPU_GONE = 8


class ChannelClosed(ConnectionError):
    """The other side is gone."""


class NoMessage(Exception):
    """The received bytes are not a message from the other side."""


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
        ChannelClosed: the other side is gone.
        TimeoutError: the deadline passed.
        OSError: this side was closed or is no longer a socket.
    """
    _limit(channel, deadline)
    try:
        channel.sendall(_HEAD.pack(token, message, len(payload)) + payload)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosed from error


def receive(channel: socket.socket, deadline: float | None = None, *, token: bytes | None = None) -> Received:
    """Wait for one message. `deadline` is a time.monotonic(); None waits forever.

    With a `token`, only a message with that token is accepted.

    Raises:
        ChannelClosed: the other side was gone before the message was complete.
        NoMessage: the message has another token, no kind, or more than MOST_BYTES.
        TimeoutError: the deadline passed.
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
    # A deadline that has passed must not become 0, which means "don't block".
    channel.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-6))


_KEPT = 4096
"""Bytes of output to keep, from the end."""

_CHUNKS = 64
"""Maximum number of chunks to read at a time: a worker may print forever, and the parent has to check its deadline."""


class PrintedOutput:
    """A pipe into which a worker prints. The parent drains it while waiting: a full pipe would block the worker.

    `fd` is the end to wait on, `remote` the worker's.
    """

    def __init__(self) -> None:
        self.fd, self.remote = os.pipe()
        os.set_blocking(self.fd, False)
        self._end = b""

    def drain(self) -> bool:
        """Read the output so far. Returns False once no process can print any more."""
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
        """Discard the output so far."""
        self.drain()
        self._end = b""

    def words(self) -> str:
        """Return the end of the output."""
        self.drain()
        return self._end.decode(errors="replace").strip()

    def hand_over(self) -> None:
        """Close the worker's end after it was passed on."""
        os.close(self.remote)

    def close(self) -> None:
        """Close the parent's end. Later output is lost."""
        os.close(self.fd)
