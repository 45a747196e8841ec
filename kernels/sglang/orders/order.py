"""The vocabulary of orders: what happens to a batch on its way to the kernel, and when a server does it so."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from attnfuzz.reference.case import Mode


class Preparation(StrEnum):
    """What is done to an eager batch before its forward pass.

    PLAN is `init_forward_metadata`, PAD `prepare_mlp_sync_batch`, which changes nothing for a batch that has its size.
    """

    PLAN = "plan"
    PAD = "pad"


class WorkerKind(StrEnum):
    """Who drives the forward pass: a server without speculation, or the worker of one of its two generations."""

    PLAIN = "plain"
    SPEC_V1 = "spec v1"
    SPEC_V2 = "spec v2"


RAISED = "--enable-dp-attention, with other ranks of the data-parallel group that have more tokens"
"""What makes `prepare_mlp_sync_batch` pad a decode: DpPaddingMode.MAX_LEN (layers/dp_attention.py)."""

ALIGNED = "--enable-dp-attention, with a number of tokens that the size of the attention group does not divide"
"""What makes it pad a prefill: each rank has its own number of tokens then (DpPaddingMode.SUM_LEN), but aligned."""


@dataclass(frozen=True)
class Order:
    """What a worker does to an eager batch, in this order, before it runs the forward pass.

    Attributes:
        worker: Who does it.
        events: What, each with the file and line of the release's `sglang/srt` where it is called.
        condition: When a server runs such a batch eagerly.
        padding: What makes it larger.

    """

    worker: WorkerKind
    events: tuple[tuple[Preparation, str], ...]
    condition: str
    padding: str = RAISED

    def words(self, *, padded: bool) -> str:
        """What a server must be told to reach this order, in one line."""
        steps = ", then ".join(
            f"{event} ({source})" for event, source in self.events if padded or event is Preparation.PLAN
        )
        conditions = "; ".join(part for part in (self.condition, self.padding if padded else "") if part)
        return f"{self.worker} worker: {steps}" + (f"; {conditions}" if conditions else "")


@dataclass(frozen=True)
class GraphOrder:
    """How a graph of one mode comes about and is replayed: where a runner plans for either.

    `condition` says when a server captures it.
    """

    worker: WorkerKind
    capture: str
    replay: str
    condition: str = ""

    def words(self) -> str:
        """What a server must be told to reach this order, in one line."""
        text = f"{self.worker} worker: captured ({self.capture}), planned again ({self.replay}), replayed"
        return f"{text}; {self.condition}" if self.condition else text


class GraphPlanner(StrEnum):
    """By which methods a backend plans a graph.

    ARGUMENTS: `init_forward_metadata_{capture,replay}_cuda_graph`, which are told lengths and indices one by one.
    IN_AND_OUT: `init_forward_metadata_out_graph(batch, in_capture=...)`, and `..._in_graph(batch)`, which is captured.
    """

    ARGUMENTS = "arguments"
    IN_AND_OUT = "in and out"


@dataclass(frozen=True)
class Orders:
    """All that a version's workers do.

    Attributes:
        eager: The orders of each mode; of several, each is some server's.
        graphs: The modes that are captured, for each kind of backend (`trtllm_mha`, `trtllm_mla`).
        planner: How graphs are planned.

    """

    eager: Mapping[Mode, tuple[Order, ...]]
    graphs: Mapping[str, Mapping[Mode, GraphOrder]]
    planner: GraphPlanner
