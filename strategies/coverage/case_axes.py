"""The axes on which a case lies as a whole: its geometry, how its tensors lie in memory, what they hold."""

from attnfuzz.reference.case import (
    Case,
    Guard,
    KvView,
    Launch,
    Outputs,
    Pace,
    PageOrder,
    QueryView,
    TableTail,
    ValueFamily,
    Workspace,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.relation import Relation
from attnfuzz.strategies.coverage.axis import Axis, single
from attnfuzz.strategies.coverage.classes import (
    FACTORS,
    GAP_COLUMNS,
    GROUPS,
    HEAD_DIMS,
    KV_HEADS,
    MAXIMA,
    PAGE_SIZES,
    SERVED_RANK,
    SLACK_COLUMNS,
    SPARE_PAGES,
    factor_class,
    group_class,
    head_dim_class,
    page_size_class,
)


def _steps(case: Case) -> str:
    running = [step for step in case.steps if step.launch is not Launch.CAPTURE]
    if len(running) == 1:
        return "one"
    return "several modes" if len({step.mode for step in running}) > 1 else "several of one mode"


def _value_dim(case: Case) -> str:
    geometry = case.geometry
    if geometry.head_dim_vo == geometry.head_dim_qk:
        return "as K's"
    return "smaller" if geometry.head_dim_vo < geometry.head_dim_qk else "larger"


def _kv_dtype(case: Case) -> str:
    return "float8_e4m3" if case.geometry.kv_dtype is DType.FLOAT8_E4M3 else "that of the queries"


def _latent(case: Case) -> str:
    latent = case.geometry.latent
    return "none" if latent is None else "rank 512" if latent.rank == SERVED_RANK else "smaller"


def _relation(case: Case) -> str:
    return "none" if case.relation is None else case.relation.words


def _has(present: bool) -> str:
    return "yes" if present else "none"


_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)

GEOMETRY_AXES: tuple[Axis[Case], ...] = (
    single("KV heads", KV_HEADS.names, lambda case: KV_HEADS.of(case.geometry.kv_heads)),
    single("group", GROUPS, lambda case: group_class(case.geometry.group)),
    single("head dim", HEAD_DIMS, lambda case: head_dim_class(case.geometry.head_dim_qk)),
    single("V dim", ("as K's", "smaller", "larger"), _value_dim),
    single("latent", ("none", "smaller", "rank 512"), _latent),
    single("page size", PAGE_SIZES, lambda case: page_size_class(case.geometry.page_size)),
    single("dtype", tuple(dtype.value for dtype in _DTYPES), lambda case: case.geometry.dtype.value),
    single("KV dtype", ("that of the queries", "float8_e4m3"), _kv_dtype),
    single("layout", tuple(each.value for each in KvLayout), lambda case: case.geometry.kv_layout.value),
    single("sinks", ("none", "yes"), lambda case: _has(case.geometry.sinks)),
    single("soft cap", ("none", "yes"), lambda case: _has(case.geometry.soft_cap > 0)),
)

CASE_AXES: tuple[Axis[Case], ...] = (
    single("steps", ("one", "several of one mode", "several modes"), _steps),
    *GEOMETRY_AXES,
    single("softmax scale", FACTORS, lambda case: factor_class(case.scales.softmax)),
    single("K scale", FACTORS, lambda case: factor_class(case.scales.k)),
    single("V scale", FACTORS, lambda case: factor_class(case.scales.v)),
    single("values", tuple(each.value for each in ValueFamily), lambda case: case.values.value),
    single("page order", tuple(each.value for each in PageOrder), lambda case: case.pages.order.value),
    single("table tail", tuple(each.value for each in TableTail), lambda case: case.pages.tail.value),
    single("table slack", SLACK_COLUMNS.names, lambda case: SLACK_COLUMNS.of(case.pages.table_slack)),
    single("table gap", GAP_COLUMNS.names, lambda case: GAP_COLUMNS.of(case.views.table_gap)),
    single("spare pages", SPARE_PAGES.names, lambda case: SPARE_PAGES.of(case.pages.spare)),
    single("query view", tuple(each.value for each in QueryView), lambda case: case.views.query.value),
    single("KV view", tuple(each.value for each in KvView), lambda case: case.views.kv.value),
    single("workspace", tuple(each.value for each in Workspace), lambda case: case.workspace.value),
    single("outputs", tuple(each.value for each in Outputs), lambda case: case.outputs.value),
    single("stated maxima", MAXIMA.names, lambda case: MAXIMA.of(case.max_len_slack)),
    single("guard", tuple(each.value for each in Guard), lambda case: case.guard.value),
    single("pace", tuple(each.value for each in Pace), lambda case: case.pace.value),
    single("relation", ("none", *(each.words for each in Relation)), _relation),
)
