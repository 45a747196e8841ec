"""HTTP to one address: no redirects, no proxies, and a token that is never shown."""

import contextlib
import http.client
import json
import os
import ssl
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.reference.foreign import decode_json
from attnfuzz.reference.user_error import UserError

MOST_BYTES = 1 << 26
"""Largest answer that is read, in bytes."""

_MOST_SHOWN = 300
_MOST_SEARCHED = 4096


class ServerError(UserError):
    """The server can't be used; the message is one line with the remedy."""


class NoAnswer(Exception):
    """The connection was refused, or broke before the answer was complete."""


class TookTooLong(NoAnswer):
    """No answer came in time."""


class StreamRefused(NoAnswer):
    """The server answered with an error in place of a stream."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True)
class HttpAnswer:
    """An answer: its status and its body."""

    status: int
    body: bytes
    words: str
    """The status and the beginning of the body, on one line."""

    @property
    def ok(self) -> bool:
        """Whether the request was carried out."""
        return self.status == HTTPStatus.OK

    @property
    def json(self) -> Any:
        """The body as JSON; None if it is none."""
        try:
            return decode_json(self.body)
        except msgspec.DecodeError:
            return None


_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Client:
    """Requests to one server. `token` goes into the Authorization header, and nowhere else."""

    host: str
    port: int
    secure: bool = False
    base: str = ""
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, token: str | None = None) -> "Client":
        """Make the client of a URL like http://127.0.0.1:8000. Raises ServerError for any other."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ServerError(f"{url!r} is not a URL: give one like http://127.0.0.1:8000") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ServerError(f"{url!r} is not the URL of a server: give one like http://127.0.0.1:8000")
        if parts.username is not None or parts.password is not None:
            raise ServerError("the URL has a password, which would be logged: name its variable with --token-env")
        if parts.query or parts.fragment:
            raise ServerError(f"{url!r} has a query: give the address of the server alone")
        secure = parts.scheme == "https"
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise ServerError(
                "the token has characters that are not allowed in a header: check the variable of --token-env"
            )
        return cls(parts.hostname, port or (443 if secure else 80), secure, parts.path.rstrip("/"), token)

    @property
    def address(self) -> str:
        """The URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.base}"

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float,
        headers: Mapping[str, str] = _NONE,
    ) -> HttpAnswer:
        """Make one request and read the answer. Raises NoAnswer or ServerError."""
        with self._sent(method, path, body, timeout, headers) as connection:
            return self._read(connection.getresponse())

    def lines(
        self, path: str, body: Mapping[str, Any], *, timeout: float, headers: Mapping[str, str] = _NONE
    ) -> Generator[bytes, None, None]:
        """Yield the lines of a streamed answer; closing the iterator closes the connection. Raises as `ask`."""
        with self._sent("POST", path, body, timeout, headers) as connection:
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                raise StreamRefused(answer.status, self._read(answer).words)
            while line := answer.readline(MOST_BYTES):
                yield line

    def send_and_close(
        self, path: str, body: Mapping[str, Any], *, wait: float, timeout: float, headers: Mapping[str, str] = _NONE
    ) -> None:
        """Send a request, and close the connection after `wait` seconds without reading the answer."""
        with self._sent("POST", path, body, timeout, headers) as connection:
            connection.sock.settimeout(max(wait, 0.001))
            # An answer may come first; it is dropped.
            with contextlib.suppress(OSError):
                connection.sock.recv(1)

    def without_token(self, text: str) -> str:
        """Replace the token in foreign text, in case the server shows it."""
        return text.replace(self.token, "[token]") if self.token else text

    def _read(self, answer: http.client.HTTPResponse) -> HttpAnswer:
        body = answer.read(MOST_BYTES)
        # Covered before it is cut, so that no part of the token is left.
        shown = in_a_line(self.without_token(body[:_MOST_SEARCHED].decode(errors="replace"))[:_MOST_SHOWN])
        read = HttpAnswer(answer.status, body, f"HTTP {answer.status}: {shown}")
        self._refuse(read)
        return read

    def _refuse(self, answer: HttpAnswer) -> None:
        """Raise ServerError for an answer that no request of this campaign can change."""
        if 300 <= answer.status < 400:
            raise ServerError(f"{self.address} redirects elsewhere: give the final address")
        if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            given = "refuses the token" if self.token else "requires a token"
            raise ServerError(f"{self.address} {given}: name the environment variable that holds it with --token-env")
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise ServerError(f"{self.address} limits the rate of requests: lower --concurrency, or lift the limit")

    @contextlib.contextmanager
    def _sent(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float, more: Mapping[str, str]
    ) -> Iterator[http.client.HTTPConnection]:
        headers = {"Accept": "*/*", "Connection": "close", **more}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        connection = self._connection(timeout)
        try:
            connection.request(method, self.base + path, body=data, headers=headers)
            yield connection
        except TimeoutError as error:
            raise TookTooLong(f"no answer within {timeout:g} s") from error
        except ssl.SSLCertVerificationError as error:
            raise ServerError(f"{self.address}: {error.verify_message}; name its authority in SSL_CERT_FILE") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(in_a_line(self.without_token(f"{type(error).__name__}: {error}"))) from error
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self.secure:
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=timeout, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)


def token_from(variable: str | None) -> str | None:
    """Read the token from an environment variable. Raises ServerError if it is not set."""
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise ServerError(f"the environment variable {variable} of --token-env is not set: export it first")
    return token
