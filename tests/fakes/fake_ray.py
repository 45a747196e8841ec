"""Stands for a Ray cluster: actors are objects, and a call is answered when it is awaited."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import attnfuzz
from attnfuzz.harness.campaign.ray_jobs import Greeting
from attnfuzz.harness.search.messages import JobSetup, Slice, SliceDone, Tally


class Node:
    """A node that can't run backends for the reasons in `lacking`. `ran` are the backends of the slices it ran.

    A `lost` node fails the actors that are placed on it.
    """

    def __init__(self, lacking: Mapping[str, str] = {}, *, lost: bool = False) -> None:
        self.lacking = dict(lacking)
        self.lost = lost
        self.ran: list[str] = []


class FakeRay:
    """What RayJobs uses of the module ray. Actors are placed on `nodes` in turn; no node has room for a second one."""

    exceptions = SimpleNamespace(RayError=RuntimeError, RayTaskError=ValueError)

    def __init__(self, *nodes: Node, gpus: float = 0) -> None:
        self.nodes = iter(nodes)
        self.gpus = gpus
        self.reserved: list[float] = []
        self.choices: list[Mapping[str, str]] = []

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> Mapping[str, float]:
        return {"GPU": self.gpus} if self.gpus else {}

    def remote(self, *, num_cpus: int, num_gpus: float, max_concurrency: int) -> Any:
        assert (num_cpus, max_concurrency) == (1, 2)
        self.reserved.append(num_gpus)
        return lambda _: SimpleNamespace(remote=self._actor)

    def wait(self, expected: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        del timeout
        ready = [each for each in expected if each.answers]
        return ready[:num_returns], []

    def get(self, answer: Any) -> Any:
        result = answer.result if isinstance(answer, Answer) else answer
        if isinstance(result, Exception):
            raise result
        return result

    def kill(self, actor: Any) -> None:
        del actor

    def shutdown(self) -> None:
        """Nothing is to be ended."""

    def _actor(self, number: int, setup: JobSetup, choices: Mapping[str, str]) -> Any:
        del number, setup
        self.choices.append(choices)
        node = next(self.nodes, None)
        greeting = Answer(answers=node is not None, result=_greeting(node) if node else None)
        run = SimpleNamespace(remote=lambda task: Answer(answers=True, result=_done(node, task)))
        return SimpleNamespace(
            greeting=SimpleNamespace(remote=lambda: greeting),
            run=SimpleNamespace(options=lambda **_: run),
        )


class Answer:
    """A reference to a result, or a stream of one; it never `answers` where the actor finds no room."""

    def __init__(self, *, answers: bool, result: Any) -> None:
        self.answers = answers
        self.result = result

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.result


def _greeting(node: Node) -> Greeting | RuntimeError:
    return RuntimeError("its node has died") if node.lost else Greeting(attnfuzz.__version__, node.lacking)


def _done(node: Node | None, task: Slice) -> SliceDone:
    assert node is not None
    node.ran.append(task.backend)
    tally = Tally(searched=task.examples)
    return SliceDone(tally=tally, stopped_early=False, seconds=0.0, unsupported={})
