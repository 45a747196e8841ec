"""Which failures some shard of a test run shows already: a folder that all of the run's processes share."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from attnfuzz.harness.verdict.fingerprint import Fingerprint


class _Claim(msgspec.Struct, frozen=True):
    fingerprint: Fingerprint
    name: str
    test: str


class Claims:
    """What the tests of a run show, in a file that the first of them makes in `folder`; `test` is the caller's name.

    A test that is run again claims again what it showed before.
    """

    def __init__(self, folder: Path, test: str) -> None:
        self._folder = folder
        self._test = test

    def claim(self, fingerprint: Fingerprint, name: str) -> bool:
        """Whether this test is to show the finding `name`: no other has one of that name, or with its fingerprint."""
        with self._locked() as file:
            for other in self._read(file):
                if other.name == name or other.fingerprint.anywhere == fingerprint.anywhere:
                    return False
            file.write(msgspec.json.encode(_Claim(fingerprint, name, self._test)) + b"\n")
        return True

    def of_others(self) -> set[Fingerprint]:
        """What other tests show."""
        with self._locked() as file:
            return {claim.fingerprint for claim in self._read(file)}

    def _read(self, file: BinaryIO) -> list[_Claim]:
        """What others claimed."""
        file.seek(0)
        # A process that is killed may leave half a line, which the next one is glued to: both bugs are shown again.
        claims = []
        for line in file:
            with suppress(msgspec.DecodeError):
                claims.append(msgspec.json.decode(line, type=_Claim))
        return [claim for claim in claims if claim.test != self._test]

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with (self._folder / "claims.ndjson").open("a+b") as file:
            # Closing the file gives the lock back, after it has written what is buffered.
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
