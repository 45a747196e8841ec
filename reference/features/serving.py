"""Features of a server: its limits, ranks that share keys, and a device that is behind the host."""

from attnfuzz.reference.case import Case, Interleave, Pace, SharedKeys
from attnfuzz.reference.edits.removals import case_with, part_with
from attnfuzz.reference.features.classes import LIMITS
from attnfuzz.reference.features.row import but, classed, flag, grouped, of_case, removable, single

FEW_RANKS = 2
"""The smallest number of ranks that share keys."""


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
    ),
    of_case(
        single("interleave", Interleave, lambda case: case.shared_keys.interleave),
        "shared_keys.interleave",
        removable("interleave", but(Interleave.TOKEN), part_with("shared_keys", interleave=Interleave.TOKEN)),
        filed={"interleave": but(Interleave.TOKEN)},
    ),
    of_case(
        flag("all to all", lambda case: case.shared_keys.all_to_all),
        "shared_keys.all_to_all",
        removable("all to all", but("none"), part_with("shared_keys", all_to_all=False)),
        filed={"all to all": but("none")},
    ),
)

SCHEDULING = grouped(
    "scheduling",
    of_case(
        classed("token budget", LIMITS, lambda case: case.serving.budget),
        "serving.budget",
        removable("token budget", but("none"), part_with("serving", budget=0)),
    ),
    of_case(
        classed("lacking pages", LIMITS, lambda case: case.serving.shortage),
        "serving.shortage",
        removable("lacking pages", but("none"), part_with("serving", shortage=0)),
    ),
    of_case(
        classed("asynchronous", LIMITS, lambda case: case.serving.asynchronous),
        "serving.asynchronous",
        removable("asynchronous scheduling", but("none"), part_with("serving", asynchronous=False)),
        filed={"asynchronous": but("none")},
        formerly={"asynchronous": "asynchronous scheduling"},
    ),
    of_case(
        single("pace", Pace, lambda case: case.pace),
        "pace",
        removable("late device", but(Pace.PROMPT), case_with(pace=Pace.PROMPT)),
        filed={"late device": but(Pace.PROMPT)},
    ),
)
