"""A worker's requests since it started, as far back as memory allows."""

from collections import deque

MOST_REQUESTS = 1000
MOST_BYTES = 8 << 20
"""Maximum total size of the requests kept of one worker."""


class RequestHistory:
    """The last requests of one worker: at most `MOST_REQUESTS`, of `MOST_BYTES` together."""

    def __init__(self) -> None:
        self._requests: deque[bytes] = deque()
        self._nbytes = 0

    def add(self, request: bytes) -> None:
        """Add a request, and drop the oldest ones for which there is no room."""
        self._requests.append(request)
        self._nbytes += len(request)
        while len(self._requests) > MOST_REQUESTS or self._nbytes > MOST_BYTES:
            self._nbytes -= len(self._requests.popleft())

    @property
    def requests(self) -> tuple[bytes, ...]:
        """The requests, in order."""
        return tuple(self._requests)
