"""The jobs of a campaign as Ray actors, on all machines of a cluster, placed and watched by Ray."""

import contextlib
import math
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import msgspec
from msgspec.structs import replace

import attnfuzz
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.jobs import JobEnded, JobProcess
from attnfuzz.harness.campaign.prepare import lacking, prepare
from attnfuzz.harness.search.messages import AnyMessage, JobSetup, Slice, SliceDone
from attnfuzz.kernels.interface.toolchain import BUILT, lacks_modules
from attnfuzz.reference.user_error import UserError

LOCAL = "local"
"""The address of a cluster that is started on this machine for one campaign."""

SECONDS_TO_ANSWER = 5.0
MOST_FALSE_STARTS = 3
OBJECT_STORE_BYTES = 100_000_000
"""For a cluster of our own. Messages are small; Ray would take a third of the memory."""


class RayError(UserError):
    """There is no cluster to run on. The message is one line with the remedy."""


class ActorEnded(msgspec.Struct, frozen=True):
    """From an actor, last: its job process exited. The fields are those of `JobEnded`."""

    text: str
    killed: bool


class Greeting(msgspec.Struct, frozen=True):
    """From an actor, first: the version of this project on its node, and why backends can't run there, by name."""

    version: str
    lacking: dict[str, str]


class JobActor:
    """Ray's actor for a job: the same job process as without Ray, on a node with room.

    `choices` are environment variables of the campaign, which the processes of a cluster do not inherit from it.
    """

    def __init__(self, number: int, setup: JobSetup, choices: Mapping[str, str]) -> None:
        os.environ.update(choices)
        self._number = number
        self._backends = setup.backends
        self._process = JobProcess(replace(setup, job=number))
        self._messages = self._process.messages()

    def greeting(self) -> Greeting:
        """Compile the kernels of the backends that can run on the node, and name the others."""
        unbuilt = {
            name: "no module is compiled for it there" for name in self._backends if lacks_modules(resolve(name))
        }
        missing = unbuilt | lacking(self._backends)
        prepare([name for name in self._backends if name not in missing], lambda _: None)
        return Greeting(attnfuzz.__version__, missing)

    def answer(self, *, granted: bool) -> None:
        """Answer the claim of the job, while `run` is in progress."""
        self._process.send(granted)

    def run(self, task: Slice) -> Iterator[AnyMessage | ActorEnded]:
        """Run a slice. The last message is SliceDone or ActorEnded."""
        self._process.send(task)
        for message in self._messages:
            yield message
            if isinstance(message, SliceDone):
                return
        yield ActorEnded(text=self._process.last_words(self._number), killed=self._process.was_killed)


class _Placed(NamedTuple):
    """An actor on a node, and why backends can't run there."""

    actor: Any
    lacking: Mapping[str, str]


class RayJobs:
    """`count` jobs on the cluster at `address`, each with a core and, `on_gpu`, a share of a GPU.

    The shares, at most one GPU each, are as large as possible so that all jobs fit on the GPUs that the cluster has at
    the beginning. A slice runs on any free actor whose node can run its backend. An actor without room, because the
    cluster has fewer cores than jobs or lost a node, costs time and loses nothing. Entering raises RayError.

    Ray notices a lost node only after seconds, and places the next actors on it until then.
    """

    def __init__(self, count: int, setup: JobSetup, *, address: str, on_gpu: bool = False) -> None:
        self.count = count
        self._setup = setup
        self._address = address
        self._on_gpu = on_gpu
        self._gpus = 0.0
        self._ray: Any = None
        self._owned = False
        self._begun = 0
        self._false_starts = 0
        self._begun_at_false_start = 0
        self._waiting: deque[tuple[int, Slice]] = deque()
        self._starting: dict[Any, tuple[int, Any]] = {}
        self._free: list[_Placed] = []
        self._running: dict[Any, tuple[int, _Placed]] = {}

    def __enter__(self) -> Self:
        """Connect to the cluster, or start one, and request the actors."""
        with _signals_kept():
            self._ray = _import_ray()
            self._connect()
        if self._on_gpu:
            self._gpus = share(self.count, self._ray.cluster_resources().get("GPU", 0))
        for _ in range(self.count):
            self._begin_actor()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the actors, and the cluster if it is ours."""
        placed = (*self._free, *(running for _, running in self._running.values()))
        for actor in (*(actor for _, actor in self._starting.values()), *(each.actor for each in placed)):
            self._ray.kill(actor)
        if self._owned:
            self._ray.shutdown()

    def start(self, job: int, task: Slice) -> None:
        """Run a slice as job number `job` on the next free actor."""
        self._waiting.append((job, task))
        self._hand_out()

    def answer(self, job: int, *, granted: bool) -> None:
        """Answer the claim of the actor that runs a slice for `job`."""
        for actor in self._actors_of(job):
            actor.answer.remote(granted=granted)

    def restart(self, job: int) -> None:
        """Request another actor after the actor of `job` exited."""
        self._begin_actor()

    def kill(self, job: int) -> None:
        """Kill the actor that runs a slice for `job`. One that waits for room is left alone."""
        for actor in self._actors_of(job):
            self._ray.kill(actor)

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        """Return the next message of any job, with the job's number, or None if none came in `timeout` seconds.

        Raises JobEnded, with `killed` if a node disappeared, and if no actor can run a slice that waits.
        """
        self._check_for_nodes()
        expected = [*self._running, *self._starting]
        if not expected:
            time.sleep(timeout)
            return None
        ready, _ = self._ray.wait(expected, num_returns=1, timeout=timeout)
        if not ready:
            return None
        if ready[0] in self._starting:
            self._greet(ready[0])
            return None
        return self._take(ready[0])

    def _actors_of(self, job: int) -> list[Any]:
        return [placed.actor for number, placed in self._running.values() if number == job]

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        quiet = {"log_to_driver": False, "logging_level": "error"}
        try:
            if self._address == LOCAL:
                self._ray.init(
                    num_cpus=self.count, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet
                )
            else:
                _knock(self._address)
                self._ray.init(address=self._address, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            raise RayError(
                f"no Ray cluster at {self._address} ({str(error).splitlines()[0]}): run `ray start` on this machine "
                f"too, and give HOST:PORT of the head node (with RAY_AUTH_MODE=token if that requires tokens), or use "
                f"--ray {LOCAL}"
            ) from error
        self._owned = True

    def _begin_actor(self) -> None:
        # A slice runs in one thread, and claims are answered in the other.
        actor_class = self._ray.remote(num_cpus=1, num_gpus=self._gpus, max_concurrency=2)(JobActor)
        actor = actor_class.remote(self._begun, self._setup, _choices())
        self._starting[actor.greeting.remote()] = self._begun, actor
        self._begun += 1

    def _greet(self, answer: Any) -> None:
        """Use an actor that was placed, or request another if it could not start."""
        number, actor = self._starting.pop(answer)
        try:
            greeting = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            # An error of preparing the backends, which another node would raise as well.
            self._ray.kill(actor)
            raise JobEnded(self._some_job(), str(error)) from error
        except self._ray.exceptions.RayError as error:
            # A lost node fails all actors that were placed on it: together they count once.
            if number >= self._begun_at_false_start:
                self._false_starts += 1
                self._begun_at_false_start = self._begun
            if self._false_starts >= MOST_FALSE_STARTS:
                raise JobEnded(self._some_job(), f"Ray can't start a job: {error}") from error
            self._begin_actor()
            return
        if greeting.version != attnfuzz.__version__:
            self._ray.kill(actor)
            versions = f"a node has attnfuzz {greeting.version}, this machine {attnfuzz.__version__}"
            raise JobEnded(self._some_job(), f"{versions}: install the same version on all")
        self._false_starts = 0
        self._free.append(_Placed(actor, greeting.lacking))
        self._hand_out()

    def _hand_out(self) -> None:
        for job, task in tuple(self._waiting):
            able = next((each for each in self._free if task.backend not in each.lacking), None)
            if able is not None:
                self._waiting.remove((job, task))
                self._free.remove(able)
                stream = able.actor.run.options(num_returns="streaming").remote(task)
                self._running[stream] = job, able

    def _check_for_nodes(self) -> None:
        """Raise JobEnded if a slice waits for a node that can run its backend, and all actors are on others."""
        placed = [*self._free, *(running for _, running in self._running.values())]
        if len(placed) < self.count:
            return
        for job, task in self._waiting:
            reasons = {each.lacking.get(task.backend) for each in placed}
            if None not in reasons:
                self._waiting.remove((job, task))
                raise JobEnded(job, f"no node of the cluster can run {task.backend}: {min(filter(None, reasons))}")

    def _take(self, stream: Any) -> tuple[int, AnyMessage]:
        job, placed = self._running.pop(stream)
        try:
            message = self._ray.get(next(stream))
        except self._ray.exceptions.RayTaskError as error:
            self._ray.kill(placed.actor)
            raise JobEnded(job, str(error)) from error
        except self._ray.exceptions.RayError as error:
            self._ray.kill(placed.actor)
            raise JobEnded(job, f"the node of job {job} was lost: {error}", killed=True) from error
        if isinstance(message, ActorEnded):
            self._ray.kill(placed.actor)
            raise JobEnded(job, message.text, killed=message.killed)
        if isinstance(message, SliceDone):
            self._free.append(placed)
            self._hand_out()
        else:
            # To the end of the queue, for fairness: Ray looks at the first streams first.
            self._running[stream] = job, placed
        return job, message

    def _some_job(self) -> int:
        return self._waiting[0][0] if self._waiting else 0


def _choices() -> dict[str, str]:
    """Return the environment variable by which a campaign limits what it draws, if it is set."""
    return {BUILT: os.environ[BUILT]} if BUILT in os.environ else {}


def share(jobs: int, gpus: float) -> float:
    """Return the share of a GPU for each of `jobs`, so that all fit, and none needs parts of two GPUs."""
    return 1 / math.ceil(jobs / max(gpus, 1))


def _import_ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError:
        raise RayError("--ray needs a package: pip install 'attnfuzz[ray]'") from None
    return ray


def _knock(address: str) -> None:
    """Raise OSError or ValueError if HOST:PORT does not answer, because Ray itself tries for many minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        raise ValueError(f"{address!r} is not HOST:PORT")
    socket.create_connection((host, int(port)), timeout=SECONDS_TO_ANSWER).close()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore signal handlers: Ray takes SIGTERM when it starts, but a campaign has its own way to stop."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
