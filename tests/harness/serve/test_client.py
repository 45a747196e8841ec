"""A client goes to one address, shows no token, and says in a line why a server can't be used."""

import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_llm_server import TOKEN, FakeFault, FakeLlm, free_port

from attnfuzz.harness.serve.client import Client, NoAnswer, ServerError, token_from
from attnfuzz.harness.serve.discovery import discover


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "not the URL of a server"),
        ("ftp://host", "not the URL of a server"),
        ("http://me:word@host", "--token-env"),
        ("http://host/?key=1", "has a query"),
        ("http://host:99999", "not a URL"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, said: str) -> None:
    with pytest.raises(ServerError, match=said):
        Client.of(url)


def test_an_address_keeps_its_path_and_scheme() -> None:
    assert Client.of("https://host/base/").address == "https://host:443/base"
    assert Client.of("http://[::1]:30000").address == "http://[::1]:30000"


def test_a_token_is_in_no_representation() -> None:
    assert TOKEN not in repr(Client.of("http://host", TOKEN))


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_TOKEN_HERE", raising=False)
    with pytest.raises(ServerError, match="NO_TOKEN_HERE"):
        token_from("NO_TOKEN_HERE")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (FakeFault.REDIRECT, "redirects elsewhere"),
        (FakeFault.RATE, "limits the rate"),
        (FakeFault.TOKEN, "requires a token"),
        (FakeFault.NO_LLM, "not an LLM server"),
    ],
)
def test_a_server_that_can_not_be_used_is_refused_in_a_line(
    fake: Callable[[FakeFault], FakeLlm], fault: FakeFault, said: str
) -> None:
    with pytest.raises(ServerError, match=said) as raised:
        discover(Client.of(fake(fault).url))
    assert "\n" not in str(raised.value)


def test_a_redirect_is_not_followed(fake: Callable[[FakeFault], FakeLlm]) -> None:
    server = fake(FakeFault.REDIRECT)
    with pytest.raises(ServerError):
        Client.of(server.url).ask("GET", "/health", timeout=60)
    assert server.paths == ["/health"]


def test_a_proxy_of_the_environment_is_not_asked(
    fake: Callable[[FakeFault], FakeLlm], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, proxy = fake(FakeFault.NONE), fake(FakeFault.NONE)
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    assert Client.of(server.url).ask("GET", "/health", timeout=60).ok
    assert (server.paths, proxy.paths) == (["/health"], [])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_of_an_unknown_authority_is_refused_and_one_of_a_named_authority_is_not(
    fake: Callable[[FakeFault], FakeLlm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process makes the certificate: the standard library can't."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    named = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words.split(), *named], check=True, capture_output=True)  # noqa: S607 - wherever it is
    server = fake(FakeFault.NONE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    client = Client.of(f"https://localhost:{server.port}")
    with pytest.raises(ServerError, match="name its authority in SSL_CERT_FILE") as raised:
        discover(client)
    assert "\n" not in str(raised.value)
    assert server.paths == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert discover(client).engine == "sglang 0.5.5-fake"


def test_a_wrong_token_is_called_so_and_not_shown(fake: Callable[[FakeFault], FakeLlm]) -> None:
    with pytest.raises(ServerError, match="refuses the token") as raised:
        discover(Client.of(fake(FakeFault.TOKEN).url, "another-word"))
    assert "another-word" not in str(raised.value)


def test_the_right_token_opens_the_server(fake: Callable[[FakeFault], FakeLlm]) -> None:
    assert discover(Client.of(fake(FakeFault.TOKEN).url, TOKEN)).engine == "sglang 0.5.5-fake"


def test_no_server_is_one_line() -> None:
    client = Client.of(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(NoAnswer):
        client.ask("GET", "/health", timeout=5)
    with pytest.raises(ServerError, match="no server answers"):
        discover(client)
