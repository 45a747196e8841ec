"""Small cases on a library's backend, run in a worker."""

from small_cases import step

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference.case import Case, Guard, Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout

STEPS = (
    step(Mode.DECODE, (1, 1), (1, 30), (1, 7)),
    step(Mode.EXTEND, (3, 3), (0, 5), (1, 9), (7, 7), (2, 19)),
    step(Mode.TARGET_VERIFY, (4, 4), (4, 21), stride=4),
)
"""Batches of several kinds, each request with fewer keys than 32."""


def case_of(
    backend: str,
    mode: Mode,
    *lengths: tuple[int, int],
    page_size: int,
    dtype: DType,
    window_left: int = -1,
    guard: Guard = Guard.RIGHT,
) -> Case:
    """A case of one step whose requests have these (q_len, kv_len)."""
    geometry = Geometry(
        q_heads=4,
        kv_heads=2,
        head_dim_qk=16,
        head_dim_vo=16,
        page_size=page_size,
        dtype=dtype,
        kv_dtype=dtype,
        kv_layout=KvLayout.NHD,
        window_left=window_left,
    )
    return Case(backend=backend, geometry=geometry, steps=(step(mode, *lengths),), guard=guard)


def verdict_of(case: Case) -> list[str]:
    """The kinds of failures of a case."""
    with Runner() as runner:
        verdict = runner.verdict(case)
    assert not verdict.unsupported, verdict.unsupported
    return [str(failure.kind) for failure in verdict.failures]
