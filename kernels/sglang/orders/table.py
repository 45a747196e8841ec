"""The orders of each version: two generations of workers, and the lines at which each version does each thing.

What is not in here, no server does: a failure in another order would be ours. `lines.json` has, for each version in
which something moved, the file and line below `sglang/srt` of each call; a version between two has the earlier one's.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
from packaging.version import Version

from attnfuzz.kernels.sglang.orders.order import (
    ALIGNED,
    GraphOrder,
    GraphPlanner,
    Order,
    Orders,
    Preparation,
    WorkerKind,
)
from attnfuzz.reference.case import Mode

_EAGER: Final = "without CUDA graphs, or in a batch beyond the largest captured one"
_V2_BY_DEFAULT: Final = Version("0.5.11")
"""From then on the second worker is what a server has (0.5.11: environ.py:459)."""


class SourceLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a version pads, plans eager batches of each kind, and plans graphs.

    `verify_v2` and `draft_v1` are None from 0.5.13 on, which has the second worker alone and plans its verify where it
    plans an extend.
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


@cache
def lines() -> Mapping[Version, SourceLines]:
    """The lines of each version that was read."""
    text = (files(__package__) / "lines.json").read_bytes()
    return {Version(name): at for name, at in msgspec.json.decode(text, type=dict[str, SourceLines]).items()}


@cache
def orders_of(version: Version) -> Orders:
    """The orders of `version`, or of the latest one before it that was read; of an older one the oldest's."""
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
    graphs = {Mode.DECODE: GraphOrder(WorkerKind.PLAIN, at.capture, at.replay)}
    draft_v2 = GraphOrder(WorkerKind.SPEC_V2, at.draft_capture, at.draft_replay, v2)
    if at.verify_v2 is None or at.draft_v1 is None:
        eager[Mode.TARGET_VERIFY] = (Order(WorkerKind.SPEC_V2, (pad, (Preparation.PLAN, at.extend)), eager_v2),)
        graphs |= {
            Mode.TARGET_VERIFY: GraphOrder(WorkerKind.SPEC_V2, at.capture, at.replay),
            Mode.DRAFT_EXTEND_V2: draft_v2,
        }
        return Orders(eager, {"trtllm_mha": graphs, "trtllm_mla": graphs}, GraphPlanner.IN_AND_OUT)
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
    }
    # The second worker captures draft extends of the MLA backend, not yet of the other (0.5.9:
    # speculative/eagle_worker_v2.py:278).
    mla = {**graphs, Mode.DRAFT_EXTEND_V2: draft_v2}
    return Orders(eager, {"trtllm_mha": graphs, "trtllm_mla": mla}, GraphPlanner.ARGUMENTS)
