"""FlashInfer's own wrappers below a release: their methods are launches, and their runs read guarded lists."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.releases.stand_ins import answered_by
from attnfuzz.kernels.vllm.launching import launching


class Planned:
    """A wrapper like FlashInfer's, which copies a plan's lists."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._int_workspace_buffer = torch.zeros(4)
        self.ran_with: Any = None

    def plan(self, indptr: torch.Tensor, *, page_size: int) -> None:
        self._paged_kv_indptr_buf = indptr.clone()
        self.page_size = page_size

    def run(self, q: torch.Tensor, cache: torch.Tensor, *args: Any, out: torch.Tensor) -> torch.Tensor:
        out.copy_(q)
        self.ran_with = (self._paged_kv_indptr_buf, args)
        return out


class WithSinks(Planned):
    """A wrapper with sinks is one of prefills."""


def made(own: type) -> Any:
    """A wrapper whose methods are launches."""
    (launched,) = launching([own])
    return launched()


class Launches:
    """Places each argument in a copy, and keeps the launches."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.placed: Mapping[str, Any] = {}

    def launch(self, op: Op, arguments: dict[str, Any]) -> Any:
        self.ops.append(op)
        self.placed = {
            name: value.clone() if isinstance(value, torch.Tensor) and name not in op.writes else value
            for name, value in arguments.items()
        }
        op.function(**self.placed)
        return arguments.get("out")


@pytest.fixture
def launches() -> Iterator[Launches]:
    kept: Any = Launches()
    with answered_by(kept):
        yield kept


def test_plans_and_runs_are_launches_of_the_wrapper_itself(launches: Launches) -> None:
    wrapper = made(Planned)
    assert isinstance(wrapper, Planned)
    wrapper.plan(torch.tensor([0, 2]), page_size=16)
    query, out = torch.ones(2), torch.zeros(2)
    assert wrapper.run(query, torch.zeros(2), 0.5, out=out) is out
    assert [(op.name, op.plans) for op in launches.ops] == [("Planned.plan", True), ("Planned.run", False)]
    assert (out.tolist(), wrapper.page_size) == ([1, 1], 16)


def test_a_run_reads_the_lists_of_its_launch(launches: Launches) -> None:
    wrapper = made(Planned)
    wrapper.plan(torch.tensor([0, 2]), page_size=16)
    wrapper.run(torch.ones(2), torch.zeros(2), 0.5, out=torch.zeros(2))
    lists, args = wrapper.ran_with
    assert lists is launches.placed["_paged_kv_indptr_buf"]
    assert args == (0.5,)
    assert "_paged_kv_indptr_buf" not in launches.ops[-1].writes
    assert "_int_workspace_buffer" in launches.ops[-1].writes


def test_a_plan_gets_tensors_on_the_host_as_they_are(launches: Launches) -> None:
    wrapper = made(Planned)
    wrapper.device = torch.device("meta")
    indptr = torch.tensor([0, 2])
    wrapper.plan(indptr, page_size=16)
    assert "indptr" not in launches.placed
    assert wrapper._paged_kv_indptr_buf.tolist() == [0, 2]


def test_a_wrapper_with_sinks_is_one_of_prefills() -> None:
    prefill, sinks = launching([WithSinks, Planned])
    assert (prefill.__name__, sinks.__name__) == ("Planned", "WithSinks")
    assert issubclass(sinks, prefill)
