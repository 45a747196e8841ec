"""The compiled kernels of a release for CPUs, called by its own code: each call is a launch on guarded memory."""

from dataclasses import dataclass
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.releases.stand_ins import current

ATTEND: Final = "cpu_attention_with_kv_cache"
WRITE: Final = "cpu_attn_reshape_and_cache"
_SCHEDULE: Final = "get_scheduler_metadata"
_SLOTS: Final = "compute_slot_mapping_kernel_impl"

_own: dict[str, Any] = {}
"""The operators of the release of this process."""


@dataclass
class _Schedule:
    """The schedule of a batch. It contains pointers into itself, so it must stay at the address where it was made."""

    made: torch.Tensor | None = None


def _attend(*, out: torch.Tensor, sinks: torch.Tensor | None, schedule: _Schedule, **arguments: Any) -> None:
    _own[ATTEND](output=out, s_aux=sinks, scheduler_metadata=schedule.made, **arguments)


def _schedule(*, schedule: _Schedule, **arguments: Any) -> None:
    schedule.made = _own[_SCHEDULE](**arguments)


def _write(**arguments: Any) -> None:
    _own[WRITE](**arguments)


def _slots(**arguments: Any) -> None:
    _own[_SLOTS](**arguments)


OPS: Final = (
    Op(ATTEND, _attend, frozenset({"out"})),
    Op(WRITE, _write, frozenset({"key_cache", "value_cache"})),
    Op(_SCHEDULE, _schedule, frozenset(), plans=True),
    Op(_SLOTS, _slots, frozenset({"slot_mapping"}), plans=True),
)


def replace_operators() -> None:
    """Replace vLLM's operators in torch's namespace by launches, once they are loaded."""
    library: Any = torch.ops._C  # noqa: SLF001 - the name that vLLM gave its operators
    for name in (ATTEND, WRITE, _SCHEDULE, _SLOTS):
        _own[name] = getattr(library, name).default
        setattr(library, name, _launching(name))


def _launching(name: str) -> Any:
    """Return a function with the operator's parameters that launches it."""
    parameters = [each.name for each in _own[name]._schema.arguments]  # noqa: SLF001 - there is no other way

    def launch(*args: Any) -> torch.Tensor | None:
        lower, arguments = current(name), dict(zip(parameters, args, strict=False))
        schedule = _Schedule(arguments.pop("scheduler_metadata", None))
        if name == ATTEND:
            arguments["out"], arguments["sinks"] = arguments.pop("output"), arguments.pop("s_aux")
        if name in (ATTEND, _SCHEDULE):
            arguments["schedule"] = schedule
        lower.launch(lower.op(name), arguments)
        return schedule.made

    # Modes of torch look up the operator by its name, even from the overload itself.
    vars(launch)["default"] = _own[name]
    return launch
