"""The order in which a release's workers plan, pad, capture, replay and forward, with source lines.

No server uses another order: a failure in one would be this project's fault. `orders.json` has, for each version with
changes, the file and line below `sglang/srt` of each call; a version between two has those of the earlier one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from packaging.version import Version

from attnfuzz.reference.case import Mode


class Preparation(StrEnum):
    """A step in preparing an eager batch for its forward pass.

    PLAN is `init_forward_metadata`, PAD `prepare_mlp_sync_batch`, which leaves a batch of the right size unchanged.
    """

    PLAN = "plan"
    PAD = "pad"


class WorkerKind(StrEnum):
    """The driver of the forward pass: a server without speculation, or the worker of one of its two generations."""

    PLAIN = "plain"
    SPEC_V1 = "spec v1"
    SPEC_V2 = "spec v2"


RAISED = "--enable-dp-attention, with other ranks of the data-parallel group that have more tokens"
"""The condition under which `prepare_mlp_sync_batch` pads a decode: DpPaddingMode.MAX_LEN (layers/dp_attention.py)."""

ALIGNED = "--enable-dp-attention, with a number of tokens that the size of the attention group does not divide"
"""The condition under which it pads a prefill: each rank keeps its number of tokens, but aligned (SUM_LEN)."""


@dataclass(frozen=True)
class Order:
    """The preparation of an eager batch by a worker, in order.

    Attributes:
        worker: The worker.
        events: The steps, each with the file and line of its call in the release's `sglang/srt`.
        condition: When a server runs such a batch eagerly.
        padding: The condition under which it is padded.

    """

    worker: WorkerKind
    events: tuple[tuple[Preparation, str], ...]
    condition: str
    padding: str = RAISED

    def words(self, *, padded: bool) -> str:
        """Describe a server's path to this order, in one line."""
        steps = ", then ".join(
            f"{event} ({source})" for event, source in self.events if padded or event is Preparation.PLAN
        )
        conditions = "; ".join(part for part in (self.condition, self.padding if padded else "") if part)
        return f"{self.worker} worker: {steps}" + (f"; {conditions}" if conditions else "")


@dataclass(frozen=True)
class GraphOrder:
    """The capture and replay of a graph of one mode: the lines where a runner plans for them.

    `condition` is that under which a server captures it.
    """

    worker: WorkerKind
    capture: str
    replay: str
    condition: str = ""

    def words(self) -> str:
        """Describe a server's path to this order, in one line."""
        text = f"{self.worker} worker: captured ({self.capture}), planned again ({self.replay}), replayed"
        return f"{text}; {self.condition}" if self.condition else text


class GraphPlanner(StrEnum):
    """The methods by which a backend plans a graph.

    ARGUMENTS: `init_forward_metadata_{capture,replay}_cuda_graph`, which take lengths and indices one by one.
    IN_AND_OUT: `init_forward_metadata_out_graph(batch, in_capture=...)`, and `..._in_graph(batch)`, which is captured.
    """

    ARGUMENTS = "arguments"
    IN_AND_OUT = "in and out"


@dataclass(frozen=True)
class Orders:
    """The orders of all workers of a version.

    Attributes:
        eager: The orders of each mode; if there are several, different servers use them.
        graphs: The modes that are captured. Not every kind of backend is in each of them (`SglangKind.captured_v2`).
        planner: The planning of graphs.

    """

    eager: Mapping[Mode, tuple[Order, ...]]
    graphs: Mapping[Mode, GraphOrder]
    planner: GraphPlanner


_EAGER: Final = "without CUDA graphs, or in a batch beyond the largest captured one"
_V2_BY_DEFAULT: Final = Version("0.5.11")
"""The first version whose servers use the second worker by default (0.5.11: environ.py:459)."""


class SourceLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lines where a version pads, plans eager batches of each kind, and plans graphs.

    `verify_v2` and `draft_v1` are None from 0.5.13 on, where only the second worker exists and a verify is planned like
    an extend. `draft_decode` is None if a draft model's decodes were not reviewed.
    """

    pad: str
    decode: str
    extend: str
    draft_v2: str
    capture: str
    replay: str
    draft_capture: str
    draft_replay: str
    verify_v2: str | None = None
    draft_v1: str | None = None
    draft_decode: str | None = None


@cache
def lines() -> Mapping[Version, SourceLines]:
    """Return the lines of each reviewed version."""
    text = Path(__file__).with_name("orders.json").read_bytes()
    return {Version(name): at for name, at in msgspec.json.decode(text, type=dict[str, SourceLines]).items()}


@cache
def orders_of(version: Version) -> Orders:
    """Return the orders of `version`, or of the latest reviewed one before it; for older ones, those of the oldest."""
    known = lines()
    at = known[max((each for each in known if each <= version), default=min(known))]
    pad = (Preparation.PAD, at.pad)
    prefill = (Order(WorkerKind.PLAIN, (pad, (Preparation.PLAN, at.extend)), "", ALIGNED),)
    v2 = "" if version >= _V2_BY_DEFAULT else "SGLANG_ENABLE_SPEC_V2=1"
    eager_v2 = f"{v2}; {_EAGER}" if v2 else _EAGER
    eager: dict[Mode, tuple[Order, ...]] = {
        Mode.DECODE: (Order(WorkerKind.PLAIN, (pad, (Preparation.PLAN, at.decode)), _EAGER),),
        Mode.EXTEND: prefill,
        Mode.CHUNKED_PREFILL: prefill,
        Mode.DRAFT_EXTEND_V2: (Order(WorkerKind.SPEC_V2, ((Preparation.PLAN, at.draft_v2), pad), eager_v2),),
    }
    if at.draft_decode is not None:
        planned = (Preparation.PLAN, at.draft_decode)
        eager[Mode.DRAFT_DECODE] = (Order(WorkerKind.SPEC_V2, (planned, pad), eager_v2),)
    graphs = {Mode.DECODE: GraphOrder(WorkerKind.PLAIN, at.capture, at.replay)}
    draft_v2 = GraphOrder(WorkerKind.SPEC_V2, at.draft_capture, at.draft_replay, v2)
    if at.verify_v2 is None or at.draft_v1 is None:
        eager[Mode.TARGET_VERIFY] = (Order(WorkerKind.SPEC_V2, (pad, (Preparation.PLAN, at.extend)), eager_v2),)
        graphs |= {
            Mode.TARGET_VERIFY: GraphOrder(WorkerKind.SPEC_V2, at.capture, at.replay),
            Mode.DRAFT_EXTEND_V2: draft_v2,
        }
        return Orders(eager, graphs, GraphPlanner.IN_AND_OUT)
    v1 = "SGLANG_ENABLE_SPEC_V2=0" if version >= _V2_BY_DEFAULT else ""
    eager_v1 = f"{v1}; {_EAGER}" if v1 else _EAGER
    eager |= {
        Mode.TARGET_VERIFY: (
            Order(WorkerKind.SPEC_V1, (pad, (Preparation.PLAN, at.extend)), eager_v1),
            Order(WorkerKind.SPEC_V2, ((Preparation.PLAN, at.verify_v2), pad), eager_v2),
        ),
        Mode.DRAFT_EXTEND: (Order(WorkerKind.SPEC_V1, ((Preparation.PLAN, at.draft_v1), pad), eager_v1),),
    }
    graphs |= {
        Mode.TARGET_VERIFY: GraphOrder(WorkerKind.SPEC_V1, at.capture, at.replay),
        Mode.DRAFT_EXTEND: GraphOrder(WorkerKind.SPEC_V1, at.draft_capture, at.draft_replay, v1),
        Mode.DRAFT_EXTEND_V2: draft_v2,
    }
    return Orders(eager, graphs, GraphPlanner.ARGUMENTS)
