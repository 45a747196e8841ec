"""Features of memory: the pages of the KV pool, the strides of tensors, and the contents of buffers."""

from typing import TYPE_CHECKING

from attnfuzz.reference.case import (
    Case,
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
from attnfuzz.reference.features.moments import Moment
from attnfuzz.reference.features.row import (
    Violation,
    but,
    classed,
    flag,
    grouped,
    of_case,
    of_steps,
    offers,
    removable,
    single,
)
from attnfuzz.reference.shared_pools import may_share_pool, pages_left

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability


def _tombstones(moment: Moment) -> str:
    case = moment.case
    left = any(pages_left(case, q_len, kv_len) for q_len, kv_len in moment.asking)
    return case.pages.tombstone if left else Tombstone.NONE


def _window_tail(moment: Moment) -> bool:
    """Return whether new tokens leave the window within the step."""
    case, size = moment.case, moment.case.geometry.page_size
    asking = moment.asking if case.pages.window_tail else ()
    return any(pages_left(case, q_len, kv_len) * size > kv_len - q_len for q_len, kv_len in asking)


def _impossible_pool(case: Case) -> Violation | None:
    geometry, pages = case.geometry, case.pages
    if pages.tombstone is not Tombstone.NONE and (geometry.window_left < 0 or geometry.latent is not None):
        return "pages.tombstone", pages.tombstone.value, "must be none without a window, and for latents"
    if pages.window_tail and pages.tombstone is Tombstone.NONE:
        return "pages.window_tail", True, "must be false without tombstones"
    if pages.window_tail and pages.other_group is not OtherGroup.NONE:
        return "pages.window_tail", True, "must be false with another group, which stores every token"
    return None


def _impossible_group(case: Case) -> Violation | None:
    group = case.pages.other_group
    if group is OtherGroup.NONE or may_share_pool(case.geometry, case.scales.granularity, group):
        return None
    legal = "must be none for latents and tensors of scales, and needs even head dims or an even page size"
    return "pages.other_group", group.value, legal


def _impossible_tail(case: Case) -> Violation | None:
    lacking = case.pages.tail is TableTail.POISON and case.pages.spare == 0
    return ("pages.spare", 0, "must be at least 1: a table tail of poison needs a page of poison") if lacking else None


def _impossible_view(case: Case) -> Violation | None:
    if case.views.kv is not KvView.PAIRED or case.geometry.head_dim_qk == case.geometry.head_dim_vo:
        return None
    return "views.kv", case.views.kv.value, "K and V share a pool only if their head dims are equal"


def _impossible_value_strides(case: Case) -> Violation | None:
    if not case.views.value_strides or case.geometry.latent is None:
        return None
    return "views.value_strides", True, "must be false for latents, which have no values"


def _refused_group(can: "Capability", case: Case) -> str | None:
    group = case.pages.other_group
    has = group is OtherGroup.NONE or group in can.other_groups
    return None if has else f"a pool shared with a group of {group.value.replace('_', ' ')}"


_GIVEN_OUT = (PageOrder.IDENTITY, PageOrder.SHARED_PREFIX, PageOrder.REUSED)

PAGES = grouped(
    "pages",
    of_case(
        single("page order", PageOrder, lambda case: case.pages.order),
        "pages.order",
        removable("page order", but(PageOrder.IDENTITY), part_with("pages", order=PageOrder.IDENTITY)),
        filed={"pages": but(PageOrder.IDENTITY)},
        supported=lambda can: _GIVEN_OUT if can.schedules else PageOrder,
        lack="the backend gives out pages itself",
    ),
    of_case(
        single("table tail", TableTail, lambda case: case.pages.tail),
        "pages.tail",
        removable("table tail", but(TableTail.ZEROS), part_with("pages", tail=TableTail.ZEROS)),
        filed={"pages": but(TableTail.ZEROS)},
        rule=_impossible_tail,
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
        supported=lambda can: POOLS.names if can.pool_holes else ("small",),
        lack="the backend does not take pools with holes",
        refusal=lambda can, case: "a pool with a hole" if case.pages.hole and not can.pool_holes else None,
        optional=("pools beyond 2^31", lambda can: bool(can.pool_holes)),
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
        **offers(
            lambda can: (Tombstone.NONE, *(can.tombstones if can.windows else ())),
            "the backend does not have such tombstones",
            lambda case: case.pages.tombstone,
            "a pool of windows with {} tombstones",
        ),
        rule=_impossible_pool,
        filed={"pages": but("none")},
    ),
    of_steps(
        flag("window tail", _window_tail),
        "pages.window_tail",
        removable("window tail", but("none"), part_with("pages", window_tail=False)),
        supported=lambda can: ("none", "yes") if can.windows and can.window_tail else ("none",),
        lack="the backend stores every new token",
        refusal=lambda can, case: (
            "new tokens that are not stored" if case.pages.window_tail and not can.window_tail else None
        ),
        filed={"pages": but("none")},
    ),
    of_case(
        single("other group", OtherGroup, lambda case: case.pages.other_group),
        "pages.other_group",
        removable("other group", but("none"), part_with("pages", other_group=OtherGroup.NONE)),
        supported=lambda can: (OtherGroup.NONE, *can.other_groups),
        lack="the backend does not share its pool with such a group",
        refusal=_refused_group,
        rule=_impossible_group,
        filed={"pages": but("none")},
    ),
    line="memory",
)

VIEWS = grouped(
    "views",
    of_case(
        classed("table gap", GAP_COLUMNS, lambda case: case.views.table_gap),
        "views.table_gap",
        removable("table gap", but("none"), part_with("views", table_gap=0)),
        supported=lambda can: GAP_COLUMNS.names if can.table_gaps else ("none",),
        lack="the backend takes dense page tables only",
        refusal=lambda can, case: (
            "gaps between the rows of a page table" if case.views.table_gap and not can.table_gaps else None
        ),
        filed={"views": but("none")},
    ),
    of_case(
        single("query view", QueryView, lambda case: case.views.query),
        "views.query",
        removable("query view", but(QueryView.CONTIGUOUS), part_with("views", query=QueryView.CONTIGUOUS)),
        filed={"views": but(QueryView.CONTIGUOUS)},
        **offers(
            lambda can: can.query_views,
            "the backend does not take this query view",
            lambda case: case.views.query,
            "query view {}",
        ),
        optional=("strided queries", lambda can: can.query_views != (QueryView.CONTIGUOUS,)),
    ),
    of_case(
        single("KV view", KvView, lambda case: case.views.kv),
        "views.kv",
        removable("KV view", but(KvView.SEPARATE), part_with("views", kv=KvView.SEPARATE)),
        filed={"views": but(KvView.SEPARATE)},
        **offers(
            lambda can: can.kv_views,
            "the backend does not take this KV view",
            lambda case: case.views.kv,
            "KV view {}",
        ),
        rule=_impossible_view,
        optional=("strided caches", lambda can: can.kv_views != (KvView.SEPARATE,)),
    ),
    of_case(
        flag("new values of other strides", lambda case: case.views.value_strides),
        "views.value_strides",
        removable("new values of other strides", but("none"), part_with("views", value_strides=False)),
        supported=lambda can: ("none", "yes") if can.value_strides else ("none",),
        lack="the backend takes no new values of other strides than its new keys",
        refusal=lambda can, case: (
            "new values of other strides than new keys" if case.views.value_strides and not can.value_strides else None
        ),
        rule=_impossible_value_strides,
        printed=lambda case: "new values of other strides" if case.views.value_strides else "",
        filed={"views": but("none")},
    ),
    line="memory",
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
    line="memory",
)
