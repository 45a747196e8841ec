"""Features of a server: its limits, ranks that share keys, and a device that is behind the host."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnfuzz.reference.case import Case, Mode, Pace, Step
from attnfuzz.reference.device import Device
from attnfuzz.reference.edits.removals import case_with, part_with
from attnfuzz.reference.features.classes import LIMITS
from attnfuzz.reference.features.row import but, classed, flag, grouped, of_case, removable, single
from attnfuzz.reference.serving import Interleave, Serving, SharedKeys

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability

FEW_RANKS = 2
"""The smallest number of ranks that share keys."""


def may_be_asynchronous(steps: Iterable[Step]) -> bool:
    """Return whether a server of these steps may schedule a forward before it has the tokens of the previous one.

    If the forward verifies drafts, the drafts must come from a draft model on the device.
    """
    modes = {step.mode for step in steps if step.drafts}
    return not modes or Mode.DRAFT_DECODE in modes


def _refused_limits(can: "Capability", case: Case) -> str | None:
    unlimited = can.schedules or case.serving == Serving()
    return None if unlimited else "limits of a server that schedules requests itself"


def _refused_asynchronous(can: "Capability", case: Case) -> str | None:
    if not case.serving.asynchronous or not can.schedules:
        return None
    if not can.asynchronous:
        return "asynchronous scheduling"
    return None if may_be_asynchronous(case.steps) else "asynchronous scheduling with drafts of no draft model"


def _refused_ranks(can: "Capability", case: Case) -> str | None:
    shared = case.shared_keys
    if not can.shared_keys:
        return None if shared == SharedKeys() else "keys that ranks share"
    if shared.ranks not in can.shared_keys:
        return f"keys that {shared.ranks} ranks share"
    heads = case.geometry.q_heads
    return f"{heads} query heads on {shared.ranks} ranks" if heads % shared.ranks else None


def _refused_interleave(can: "Capability", case: Case) -> str | None:
    interleave = case.shared_keys.interleave
    words = f"an interleave of a {interleave.replace('_', ' ')}"
    if not can.shared_keys or interleave is Interleave.TOKEN:
        return None
    # vLLM 0.33.0: v1/worker/cp_utils.py, check_attention_cp_compatibility.
    drafts = any(step.drafts for step in case.steps)
    return words if interleave not in can.interleaves else f"{words} with drafts" if drafts else None


def _ranks_in_words(case: Case) -> str:
    shared = case.shared_keys
    by = shared.interleave.value.replace("_", " ")
    words = f"keys on {shared.ranks} ranks by {by}{', exchanged all to all' * shared.all_to_all}"
    return "" if shared == SharedKeys() else words


def _limits(can: "Capability") -> Iterable[str]:
    return LIMITS.names if can.schedules else ("none",)


def _ranks(case: Case) -> str:
    return "four" if case.shared_keys.ranks > FEW_RANKS else "up to two"


RANKS = grouped(
    "ranks that share keys",
    of_case(
        single(
            "ranks", ("up to two", "four"), lambda case: "four" if case.shared_keys.ranks > FEW_RANKS else "up to two"
        ),
        "shared_keys.ranks",
        removable("four ranks", but("up to two"), part_with("shared_keys", ranks=SharedKeys().ranks)),
        filed={"four ranks": but("up to two")},
        supported=lambda can: ("up to two", "four") if set(can.shared_keys) - {FEW_RANKS} else ("up to two",),
        lack="the backend's keys are not shared by as many ranks",
        printed=_ranks_in_words,
        refusal=_refused_ranks,
    ),
    of_case(
        single("interleave", Interleave, lambda case: case.shared_keys.interleave),
        "shared_keys.interleave",
        removable("interleave", but(Interleave.TOKEN), part_with("shared_keys", interleave=Interleave.TOKEN)),
        filed={"interleave": but(Interleave.TOKEN)},
        supported=lambda can: can.interleaves if can.shared_keys else (Interleave.TOKEN,),
        lack="the backend's ranks don't have such runs of keys",
        printed=lambda _: "",
        refusal=_refused_interleave,
    ),
    of_case(
        flag("all to all", lambda case: case.shared_keys.all_to_all),
        "shared_keys.all_to_all",
        removable("all to all", but("none"), part_with("shared_keys", all_to_all=False)),
        filed={"all to all": but("none")},
        supported=lambda can: ("none", "yes") if can.shared_keys else ("none",),
        lack="the backend has no ranks that share keys",
        printed=lambda _: "",
    ),
    line="geometry",
)

SCHEDULING = grouped(
    "scheduling",
    of_case(
        classed("token budget", LIMITS, lambda case: case.serving.budget),
        "serving.budget serving.seed",
        removable("token budget", but("none"), part_with("serving", budget=0)),
        supported=_limits,
        lack="the backend does not schedule",
        refusal=_refused_limits,
    ),
    of_case(
        classed("lacking pages", LIMITS, lambda case: case.serving.shortage),
        "serving.shortage",
        removable("lacking pages", but("none"), part_with("serving", shortage=0)),
        supported=_limits,
        lack="the backend does not schedule",
    ),
    of_case(
        classed("asynchronous", LIMITS, lambda case: case.serving.asynchronous),
        "serving.asynchronous",
        removable("asynchronous scheduling", but("none"), part_with("serving", asynchronous=False)),
        filed={"asynchronous": but("none")},
        formerly={"asynchronous": "asynchronous scheduling"},
        supported=lambda can: LIMITS.names if can.schedules and can.asynchronous else ("none",),
        lack="the backend does not schedule asynchronously",
        refusal=_refused_asynchronous,
    ),
    of_case(
        single("pace", Pace, lambda case: case.pace),
        "pace",
        removable("late device", but(Pace.PROMPT), case_with(pace=Pace.PROMPT)),
        filed={"late device": but(Pace.PROMPT)},
        supported=lambda can: Pace if can.device is Device.CUDA else (Pace.PROMPT,),
        lack="a CPU has no queue to be behind with",
        refusal=lambda can, case: (
            "a device that runs behind the host" if case.pace is Pace.LATE and can.device is Device.CPU else None
        ),
    ),
    line="memory",
)
