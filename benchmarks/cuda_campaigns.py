"""Campaigns on modules with a planted regression: which of their findings are the plant's.

While a campaign runs, each of its findings that the ledger does not list is replayed on the unchanged modules. A
finding that passes there is the plant's, and ends the campaign. One that fails there, too, is counted apart.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from attnfuzz.harness.campaign.events import FindingFiled
from attnfuzz.harness.cli.answers import CampaignAnswer, ReplayAnswer
from attnfuzz.harness.report.titles import title_of
from attnfuzz.reference.case_types import decode_any

ROOT = Path(__file__).parents[1]

_POLL = 0.25
_TO_END = 15.0
"""Seconds that a campaign may take to end after an interrupt."""
_TO_START = 90.0
"""Seconds beyond its time that a campaign may take in all."""
_TO_REPLAY = 120.0
"""Time limit of a replay. A flaky finding is run as often as its rate requires."""
_RUNS = 3
"""Number of runs of a finding that is not known to be flaky."""


class Origin(StrEnum):
    """The origin of a finding, by its replay on the unchanged modules."""

    PLANT = "the plant"
    UNCHANGED = "also unchanged"
    UNDECIDED = "undecided"


def origin_of(replayed: ReplayAnswer | None) -> Origin:
    """Return the origin of a finding by the answer of its replay, None if it could not be run.

    A flaky finding that passes too few times to refute its rate is undecided.
    """
    if replayed is None:
        return Origin.UNDECIDED
    if replayed.fails:
        return Origin.UNCHANGED
    return Origin.PLANT if replayed.conclusive else Origin.UNDECIDED


class Replays:
    """Replays of a campaign's findings, beside it: one at a time, in the order of their filing."""

    def __init__(self, replay: Callable[[FindingFiled], Origin]) -> None:
        self._replay = replay
        self._pool = ThreadPoolExecutor(1)
        self._begun: dict[str, tuple[FindingFiled, Future[Origin]]] = {}

    def add(self, finding: FindingFiled) -> None:
        """Replay a finding unless it was added before."""
        if finding.name not in self._begun:
            self._begun[finding.name] = finding, self._pool.submit(self._replay, finding)

    @property
    def first(self) -> FindingFiled | None:
        """The first finding that is the plant's, as far as replays have ended."""
        return next((each for each, future in self._begun.values() if _ended(future) is Origin.PLANT), None)

    def count(self, origin: Origin) -> int:
        """Return the number of findings of this origin."""
        return sum(_ended(future) is origin for _, future in self._begun.values())

    def finish(self) -> None:
        """Wait for the replays that have begun or must be made to find the first one that is the plant's."""
        for _, future in self._begun.values():
            if self.first is not None:
                break
            future.result()
        self._pool.shutdown(cancel_futures=True)


def _ended(future: Future[Origin]) -> Origin | None:
    return future.result() if future.done() and not future.cancelled() else None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the campaign on a plant, or on unchanged modules if `plant` is "".

    `seconds` is the time from the campaign's start to the first finding that is the plant's, None if there is none.
    `titles` has that finding, or all of unchanged modules. `unchanged` and `undecided` count other findings by their
    replays.
    """

    plant: str
    backend: str
    seconds: float | None
    cases: int
    deaths: int
    titles: tuple[str, ...]
    unchanged: int
    undecided: int
    error: str = ""

    @property
    def words(self) -> str:
        """The result in a line."""
        found = f"{self.seconds:.0f} s: {self.titles[0]}; " if self.seconds is not None else ""
        return f"{found}findings also unchanged {self.unchanged}, undecided {self.undecided}"


class Results(msgspec.Struct, kw_only=True):
    """All results, and the machine that they come from."""

    machine: str = ""
    all: list[Result] = []


class BadResults(Exception):
    """A file of results can't be read; says why in one line."""


class Pretended(NamedTuple):
    """Backends that are fuzzed on a machine without a GPU: one in place of plants, one of unchanged modules."""

    planted: str
    unchanged: str


class Campaigns:
    """Runs campaigns in the folder `work`, a few at a time, and keeps their results."""

    def __init__(
        self,
        work: Path,
        *,
        seconds: float,
        jobs: int,
        pretended: Pretended | None,
        gpus: str | None,
        time_left: Callable[[], float],
    ) -> None:
        """`gpus` is the value of CUDA_VISIBLE_DEVICES for all processes. Raises BadResults."""
        self._seconds, self._jobs, self._pretended, self._gpus = seconds, jobs, pretended, gpus
        self._time_left, self._lock = time_left, threading.Lock()
        self._file = work / "results.json"
        try:
            self.results = msgspec.json.decode(self._file.read_bytes(), type=Results)
        except FileNotFoundError:
            self.results = Results()
        except msgspec.DecodeError as error:
            raise BadResults(f"{self._file} is not of this version of the benchmark: {error}. Remove it") from None

    def done(self, plant: str, backend: str) -> bool:
        """Return whether this campaign has a result, other than that it could not run."""
        return any((each.plant, each.backend) == (plant, backend) and not each.error for each in self.results.all)

    def run(self, plant: str, backend: str, home: Path, unchanged: Path | None) -> None:
        """Run a campaign in `home`, replay its findings with the caches in `unchanged`, and keep the result.

        Without them, its modules are the unchanged ones.
        """
        if self._time_left() < self._seconds / 2:
            return
        result = self._campaign(plant, backend, home, unchanged)
        with self._lock:
            others = [each for each in self.results.all if (each.plant, each.backend) != (plant, backend)]
            self.results.all = [*others, result]
            self._file.write_bytes(msgspec.json.format(msgspec.json.encode(self.results)))
            print(f"{plant or 'unchanged'} ({backend}): {result.error or result.words}", flush=True)

    def _campaign(self, plant: str, backend: str, home: Path, unchanged: Path | None) -> Result:
        folder = home / "home"
        for made in (folder, home / "replays"):
            shutil.rmtree(made, ignore_errors=True)
        (home / "replays").mkdir()
        if self._pretended is not None:
            backend_here = self._pretended.planted if plant else self._pretended.unchanged
        else:
            backend_here = backend
        time_for_it = min(self._seconds, self._time_left())
        command = [sys.executable, "-m", "attnfuzz", "fuzz", "--backend", backend_here, "--home", str(folder)]
        command += ["--time", f"{time_for_it:.0f}s", "--jobs", f"{self._jobs}", "--quiet"]
        command += ["--json", str(home / "answer.json"), "--ledger", str(ROOT / "attnfuzz-ledger.toml")]
        (home / "answer.json").unlink(missing_ok=True)
        replays = Replays(lambda finding: self._replayed(finding, home, unchanged))
        with (home / "output.txt").open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=self._caches(home), cwd=ROOT)
            watch(process, folder, replays, deadline=time.monotonic() + time_for_it + _TO_START)
        return _result(plant, backend, home, replays, out_of_time=self._time_left() <= 0)

    def _replayed(self, finding: FindingFiled, home: Path, unchanged: Path | None) -> Origin:
        """Replay a finding on the unchanged modules. Another may replace it meanwhile, so a copy is replayed."""
        if unchanged is None:
            return Origin.UNCHANGED
        copy = home / "replays" / finding.name
        if self._time_left() <= 0:
            return Origin.UNDECIDED
        with contextlib.suppress(OSError):
            shutil.copytree(finding.path, copy)
        command = [sys.executable, "-m", "attnfuzz", "replay", str(copy), "--quiet", "--json", f"{copy}.json"]
        if self._pretended is not None:
            command += ["--backend", self._pretended.unchanged]
        if finding.recurrence is None:
            command += ["--repeat", f"{_RUNS}"]
        with Path(f"{copy}.txt").open("w") as output, contextlib.suppress(subprocess.TimeoutExpired):
            environment = self._caches(unchanged)
            subprocess.run(
                command, stdout=output, stderr=output, env=environment, cwd=ROOT, timeout=_TO_REPLAY, check=False
            )
        try:
            return origin_of(msgspec.json.decode(Path(f"{copy}.json").read_bytes(), type=ReplayAnswer))
        except (OSError, msgspec.DecodeError):
            return origin_of(None)

    def _caches(self, home: Path) -> dict[str, str]:
        """Return the environment of a process that sees the libraries in `home` alone."""
        environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        if self._gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus
        caches = {"ATTNFUZZ_CACHE": str(home / "cache"), "FLASHINFER_WORKSPACE_BASE": str(home / "fi")}
        return environment | caches | {"ATTNFUZZ_BUILT": "1"}


class _Process(Protocol):
    def poll(self) -> int | None: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


def watch(process: _Process, folder: Path, replays: Replays, deadline: float) -> None:
    """Wait for a campaign and the replays of its findings. Interrupts it after the first one that is the plant's."""
    interrupted: float | None = None
    while process.poll() is None:
        time.sleep(_POLL)
        now = time.monotonic()
        _add_new(folder, replays)
        if interrupted is None and (now > deadline or replays.first is not None):
            process.send_signal(signal.SIGINT)
            interrupted = now
        if interrupted is not None and now > interrupted + _TO_END:
            process.kill()
    _add_new(folder, replays)
    replays.finish()


def _add_new(folder: Path, replays: Replays) -> None:
    """Add the findings that the ledger does not list, until one is the plant's."""
    if replays.first is None:
        for finding in findings(folder):
            if finding.known is None:
                replays.add(finding)


def findings(folder: Path) -> Iterator[FindingFiled]:
    """Yield the findings in the log of the campaign in `folder`."""
    for log in folder.glob("campaigns/*/events.ndjson"):
        for line in log.read_bytes().splitlines():
            if b'"FindingFiled"' in line:
                with contextlib.suppress(msgspec.DecodeError):  # another event with a finding, or half a line
                    yield msgspec.json.decode(line, type=FindingFiled, dec_hook=decode_any)


def _result(plant: str, backend: str, home: Path, replays: Replays, *, out_of_time: bool) -> Result:
    first, undecided = replays.first, replays.count(Origin.UNDECIDED)
    cases = deaths = 0
    titles: tuple[str, ...] = ()
    try:
        answer = msgspec.json.decode((home / "answer.json").read_bytes(), type=CampaignAnswer)
        cases, deaths, error = answer.cases, answer.deaths, answer.failed or ""
        titles = tuple(cause.title for cause in answer.causes if cause.known is None)
    except (OSError, msgspec.DecodeError):
        lines = (home / "output.txt").read_text(errors="replace").strip().splitlines() or ["no output"]
        error = f"no answer: {lines[-1]}"
    if first is None and undecided and out_of_time and not error:
        error = "no time was left for replays"
    if plant:
        titles = () if first is None else (title_of(first, first.needs),)
    return Result(
        plant=plant,
        backend=backend,
        seconds=None if first is None else first.at,
        cases=cases,
        deaths=deaths,
        titles=titles,
        unchanged=replays.count(Origin.UNCHANGED),
        undecided=undecided,
        error=error,
    )
