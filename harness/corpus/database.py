"""Hypothesis' example database: a cache of failures, on disk or shared by machines through Redis."""

import os
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from attnfuzz.reference.user_error import UserError

SECONDS_TO_ANSWER = 0.5
"""Timeout; a server in reach needs a hundredth of it."""

EXPIRES_AFTER = timedelta(days=30)
"""Entries expire a month after their last use; a backend may pause for weeks."""

_SCHEMES = ("redis", "rediss", "unix")

Result = TypeVar("Result")


class DatabaseError(UserError):
    """A database can't be used; the message is one line with the remedy."""


def open_database(where: str | None, trouble: Callable[[str], None]) -> ExampleDatabase | None:
    """The database at `where`, a folder, a redis:// URL or None, not connected yet. Raises DatabaseError."""
    if where is None:
        return None
    if "://" in where:
        return _on_server(where, trouble)
    folder = Path(where)
    if not where.isprintable():
        raise DatabaseError(f"the database {where!r} can't be: name a folder, or a redis:// URL")
    if os.path.lexists(folder) and not folder.is_dir():
        raise DatabaseError(f"the database {where} is a file: name a folder, or a redis:// URL")
    return DirectoryBasedExampleDatabase(folder)


def without_password(where: str) -> str:
    """`where` without its password, for logs."""
    try:
        parts = urlsplit(where)
    except ValueError:
        # The password's end is unknown.
        return f"{where.partition('://')[0]}://..."
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host, query="")) if parts.netloc else where.partition("?")[0]


class TolerantDatabase(ExampleDatabase):
    """`inner` while it answers, and an empty database while it raises one of `errors`.

    `trouble` is called with the first error. After an error `inner` is left alone for `rest` seconds, or for 30 times
    the time that it took to fail, if that is longer.
    """

    def __init__(
        self,
        inner: ExampleDatabase,
        errors: tuple[type[Exception], ...],
        trouble: Callable[[Exception], None],
        *,
        rest: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._errors = errors
        self._trouble = trouble
        self._rest = rest
        self._clock = clock
        self._reported = False
        self._asleep_until = float("-inf")

    def save(self, key: bytes, value: bytes) -> None:
        """Save `value` under `key`, if the database answers."""
        self._try(lambda: self._inner.save(key, value), None)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """All values under `key`; empty while the database does not answer."""
        return self._try(lambda: list(self._inner.fetch(key)), [])

    def delete(self, key: bytes, value: bytes) -> None:
        """Remove `value` from `key`, if the database answers."""
        self._try(lambda: self._inner.delete(key, value), None)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Move `value` from `src` to `dest`, if the database answers."""
        self._try(lambda: self._inner.move(src, dest, value), None)

    def _try(self, operation: Callable[[], Result], otherwise: Result) -> Result:
        started = self._clock()
        if started < self._asleep_until:
            return otherwise
        try:
            return operation()
        except self._errors as error:
            now = self._clock()
            self._asleep_until = now + max(self._rest, 30 * (now - started))
            if not self._reported:
                self._reported = True
                self._trouble(error)
            return otherwise


def _on_server(url: str, trouble: Callable[[str], None]) -> ExampleDatabase:
    shown = without_password(url)
    if url.partition("://")[0] not in _SCHEMES:
        raise DatabaseError(
            f"the database {shown} is no Redis server: write redis://HOST:PORT/NUMBER, or name a folder"
        )
    try:
        from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415 - an extra
        from redis import Redis, RedisError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise DatabaseError(f"the database {shown} needs a package: pip install 'attnfuzz[redis]'") from None
    try:
        client = Redis.from_url(
            url,
            socket_connect_timeout=SECONDS_TO_ANSWER,
            socket_timeout=SECONDS_TO_ANSWER,
        )
    except ValueError as error:
        raise DatabaseError(f"the database {shown}: {error}; write redis://HOST:PORT/NUMBER") from None
    return TolerantDatabase(
        RedisExampleDatabase(client, expire_after=EXPIRES_AFTER),
        (RedisError, OSError),
        lambda error: trouble(
            f"the example database {shown} does not answer ({error}); going on without it until it does"
        ),
    )
