"""Messages between a worker and its parent: a kind, a size, and bytes, over a stream socket."""

import socket
import struct
import time
from enum import IntEnum

_HEAD = struct.Struct("<BQ")
_CHUNK = 1 << 16


class Message(IntEnum):
    """What a message is: REQUEST goes to the worker, the others come from it.

    READY is the first, with the worker's process id; ERROR holds the traceback of a handler that raised, or, as the
    first, of what kept the worker from beginning. REFUSAL is as ERROR for what a user can mend, and holds one line.
    LEAVING is the last of a worker that ends itself, with its exit code.
    """

    READY = 1
    REQUEST = 2
    REPLY = 3
    ERROR = 4
    LEAVING = 5
    REFUSAL = 6


class ChannelClosed(ConnectionError):
    """The other side is gone."""


def send(channel: socket.socket, message: Message, payload: bytes, deadline: float | None = None) -> None:
    """Send one message. Raises as `receive` does."""
    _limit(channel, deadline)
    try:
        channel.sendall(_HEAD.pack(message, len(payload)) + payload)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosed from error


def receive(channel: socket.socket, deadline: float | None = None) -> tuple[Message, bytes]:
    """Wait for one message. `deadline` is a time.monotonic(); None waits for ever.

    Raises:
        ChannelClosed: when the other side is gone before the message is complete.
        TimeoutError: when the deadline passes.

    """
    received = _some(channel, _CHUNK, deadline)
    while len(received) < _HEAD.size:
        received += _some(channel, _CHUNK, deadline)
    message, size = _HEAD.unpack_from(received)
    parts = [received[_HEAD.size :]]
    missing = size - len(parts[0])
    while missing > 0:
        parts.append(_some(channel, missing, deadline))
        missing -= len(parts[-1])
    return Message(message), b"".join(parts)


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
