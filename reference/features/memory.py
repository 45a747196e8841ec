"""Features of memory: the pages of the KV pool, the strides of tensors, and the contents of buffers."""

from attnfuzz.reference.case import (
    Guard,
    KvView,
    OtherGroup,
    Outputs,
    PageOrder,
    QueryView,
    TableTail,
    Tombstone,
    Unused,
    Workspace,
)
from attnfuzz.reference.edits import removals
from attnfuzz.reference.edits.removals import case_with, part_with
from attnfuzz.reference.features.classes import GAP_COLUMNS, POOLS, SLACK_COLUMNS, SPARE_PAGES
from attnfuzz.reference.features.moments import Moment, of_steps
from attnfuzz.reference.features.row import but, classed, flag, grouped, of_case, removable, single
from attnfuzz.reference.shared_pools import pages_left


def _tombstones(moment: Moment) -> str:
    case = moment.case
    left = any(pages_left(case, q_len, kv_len) for q_len, kv_len in moment.asking)
    return case.pages.tombstone if left else Tombstone.NONE


def _window_tail(moment: Moment) -> bool:
    """Return whether new tokens leave the window within the step."""
    case, size = moment.case, moment.case.geometry.page_size
    asking = moment.asking if case.pages.window_tail else ()
    return any(pages_left(case, q_len, kv_len) * size > kv_len - q_len for q_len, kv_len in asking)


PAGES = grouped(
    "pages",
    of_case(
        single("page order", PageOrder, lambda case: case.pages.order),
        "pages.order",
        removable("page order", but(PageOrder.IDENTITY), part_with("pages", order=PageOrder.IDENTITY)),
        filed={"pages": but(PageOrder.IDENTITY)},
    ),
    of_case(
        single("table tail", TableTail, lambda case: case.pages.tail),
        "pages.tail",
        removable("table tail", but(TableTail.ZEROS), part_with("pages", tail=TableTail.ZEROS)),
        filed={"pages": but(TableTail.ZEROS)},
    ),
    of_case(
        classed("table slack", SLACK_COLUMNS, lambda case: case.pages.table_slack),
        "pages.table_slack",
        removable("table slack", but("none"), part_with("pages", table_slack=0)),
        filed={"pages": but("none")},
    ),
    of_case(
        classed("spare pages", SPARE_PAGES, lambda case: case.pages.spare), "pages.spare", filed={"pages": but("one")}
    ),
    of_case(
        classed("pool", POOLS, lambda case: case.pages.hole),
        "pages.hole",
        removable("offsets beyond 2^31", but("small"), part_with("pages", hole=0)),
        filed={"pages": but("small")},
    ),
    of_case(
        single("behind the last key", Unused, lambda case: case.pages.behind),
        "pages.behind",
        removable(
            "NaN behind the last key",
            but(Unused.NUMBERS),
            removals.numbers_in("behind"),
            memory="the slots behind the last key",
        ),
        filed={"pages": but(Unused.NAN)},
    ),
    of_case(
        single("free pages", Unused, lambda case: case.pages.free),
        "pages.free",
        removable("NaN in free pages", but(Unused.NUMBERS), removals.numbers_in("free"), memory="pages of no request"),
        filed={"pages": but(Unused.NAN)},
    ),
    of_steps(
        single("tombstones", Tombstone, _tombstones),
        "pages.tombstone",
        removable("tombstones", but("none"), removals.pages_kept),
        filed={"pages": but("none")},
    ),
    of_steps(
        flag("window tail", _window_tail),
        "pages.window_tail",
        removable("window tail", but("none"), part_with("pages", window_tail=False)),
        filed={"pages": but("none")},
    ),
    of_case(
        single("other group", OtherGroup, lambda case: case.pages.other_group),
        "pages.other_group",
        removable("other group", but("none"), part_with("pages", other_group=OtherGroup.NONE)),
        filed={"pages": but("none")},
    ),
)

VIEWS = grouped(
    "views",
    of_case(
        classed("table gap", GAP_COLUMNS, lambda case: case.views.table_gap),
        "views.table_gap",
        removable("table gap", but("none"), part_with("views", table_gap=0)),
        filed={"views": but("none")},
    ),
    of_case(
        single("query view", QueryView, lambda case: case.views.query),
        "views.query",
        removable("query view", but(QueryView.CONTIGUOUS), part_with("views", query=QueryView.CONTIGUOUS)),
        filed={"views": but(QueryView.CONTIGUOUS)},
    ),
    of_case(
        single("KV view", KvView, lambda case: case.views.kv),
        "views.kv",
        removable("KV view", but(KvView.SEPARATE), part_with("views", kv=KvView.SEPARATE)),
        filed={"views": but(KvView.SEPARATE)},
    ),
)

BUFFERS = grouped(
    "buffers",
    of_case(
        single("workspace", Workspace, lambda case: case.workspace),
        "workspace",
        removable("used workspace", but(Workspace.FRESH), case_with(workspace=Workspace.FRESH)),
        filed={"used workspace": but(Workspace.FRESH)},
    ),
    of_case(
        single("outputs", Outputs, lambda case: case.outputs),
        "outputs",
        removable("NaN in outputs", but(Outputs.STALE), case_with(outputs=Outputs.STALE), memory="the outputs"),
        removable("stale outputs", but(Outputs.POISONED), case_with(outputs=Outputs.POISONED), clue=False),
    ),
    of_case(
        single("guard", Guard, lambda case: case.guard),
        "guard",
        removable("left guard", but(Guard.RIGHT), case_with(guard=Guard.RIGHT), clue=False),
    ),
)
