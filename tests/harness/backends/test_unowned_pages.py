"""Whether a function can be given pages without memory is tried once, on a small pool."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attnfuzz.harness.backends.description import Rehearsed
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.backends.unowned_pages import small_case, touches_unowned_pages
from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode

SEGFAULT = Death(signal=11, exit_code=None, hang=False, seconds=0.1, fault=None, entry=b"", output="")
HANG = Death(signal=9, exit_code=None, hang=True, seconds=10.0, fault=None, entry=b"", output="")

FUNCTIONS = """
from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.reference.capability import Capability

def paged(*, k_cache, block_tables, **_):
    k_cache[block_tables[:, 0].long()].sum()

def copying(*, k_cache, **_):
    k_cache.clone()

PAGED, COPYING = FunctionBackend(paged), FunctionBackend(copying)
REFUSING = FunctionBackend(paged, capability=Capability(pool_holes=False))
"""


@pytest.mark.parametrize(
    ("with_hole", "without", "touches"),
    [(None, None, False), (SEGFAULT, None, True), (SEGFAULT, SEGFAULT, False), (HANG, None, False)],
    ids=["passes", "dies of the pages alone", "dies anyway", "hangs"],
)
def test_a_function_touches_unowned_pages_if_it_dies_of_them_alone(
    with_hole: Death | None, without: Death | None, touches: bool
) -> None:
    case = small_case(Capability())
    assert case is not None
    assert touches_unowned_pages(case, lambda each: with_hole if each.pages.hole else without) is touches


@pytest.mark.parametrize(
    "can",
    [Capability(), Capability(modes=(Mode.EXTEND,), head_dims=(80,), page_sizes=(128,))],
    ids=["any", "narrow"],
)
def test_the_case_of_the_trial_is_supported_and_its_offsets_fit_32_bits(can: Capability) -> None:
    case = small_case(can)
    assert isinstance(case, Case)
    geometry = case.geometry
    elements = case.pages.hole * geometry.page_size * geometry.kv_heads * geometry.head_dim_qk
    assert 1 << 18 <= elements < 1 << 20


@pytest.mark.slow
def test_a_function_gets_pools_beyond_32_bit_offsets_unless_it_touches_all_pages(tmp_path: Path) -> None:
    """It starts workers, since the function may die."""
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    found: Callable[[str], object] = lambda name: resolve(f"{path}:{name}")  # noqa: E731 - short
    paged, copying, refusing = map(found, ("PAGED", "COPYING", "REFUSING"))
    assert isinstance(paged, Rehearsed)
    assert isinstance(copying, Rehearsed)
    assert isinstance(refusing, Rehearsed)
    assert [each.capability.pool_holes for each in (paged, copying, refusing)] == [True, False, False]
    assert [each.whole_pool for each in (paged, copying, refusing)] == [False, True, False]
