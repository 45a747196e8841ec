"""How the tensors of a case lie in memory: pages and page tables, strides, slack, and what buffers hold before."""

from functools import cache
from typing import TypedDict

from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Guard, KvView, Outputs, PageOrder, Pages, QueryView, TableTail, Views, Workspace
from attnfuzz.reference.geometry import Geometry
from attnfuzz.strategies.choices import choice

_PAGE_ORDERS = choice(tuple(PageOrder))
# What a table's tail holds, and how many spare pages there are: one at least where the tail points to one.
_TAILS_AND_SPARES = choice(
    tuple((tail, spare or int(tail is TableTail.POISON)) for tail in TableTail for spare in (1, 1, 0, 2, 5, 17))
)
_TABLE_SLACK = choice((0, 0, 1, 2, 3, 8, 31))
_TABLE_GAPS = choice((0, 0, 0, 1, 4, 7))
# The state of the workspace, and what outputs hold: buffers that were just made, or that have a past.
_BUFFERS = choice(tuple((workspace, outputs) for workspace in Workspace for outputs in Outputs))
# Servers state the model's context length, so that a maximum may be far above what a batch needs.
_MAX_LEN_SLACK = choice((0, 0, 0, 1, 7, 64, 1000, 131072))
_GUARDS = choice(tuple(Guard))


class Placement(TypedDict):
    """The fields of a Case that say how its tensors lie in memory."""

    pages: Pages
    views: Views
    workspace: Workspace
    outputs: Outputs
    max_len_slack: int
    guard: Guard


def draw_placement(draw: DrawFn, can: Capability, geometry: Geometry) -> Placement:
    """Pages, views, buffers and guard of a case that `can` covers."""
    equal = geometry.head_dim_qk == geometry.head_dim_vo
    tail, spare = draw(_TAILS_AND_SPARES)
    workspace, outputs = draw(_BUFFERS)
    return Placement(
        pages=Pages(order=draw(_PAGE_ORDERS), tail=tail, spare=spare, table_slack=draw(_TABLE_SLACK)),
        views=Views(
            query=draw(_query_view(can.query_views)),
            kv=draw(_kv_view(can.kv_views, equal=equal)),
            table_gap=draw(_TABLE_GAPS),
        ),
        workspace=workspace,
        outputs=outputs,
        max_len_slack=draw(_MAX_LEN_SLACK),
        guard=draw(_GUARDS),
    )


@cache
def _query_view(views: tuple[QueryView, ...]) -> SearchStrategy[QueryView]:
    return choice(views)


@cache
def _kv_view(views: tuple[KvView, ...], *, equal: bool) -> SearchStrategy[KvView]:
    """One of `views`; K and V lie in one pool only if their head dims are `equal`."""
    return choice(tuple(view for view in views if equal or view is not KvView.PAIRED) or (KvView.SEPARATE,))
