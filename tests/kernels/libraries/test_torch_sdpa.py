"""torch's attention as a backend: its mask, and that nothing drawn makes it fail."""

import msgspec
import pytest
import torch
from repetition import examples
from small_cases import HEADS, drawn, lighter, passed, run, step

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.libraries import torch_sdpa
from attnfuzz.kernels.libraries.torch_sdpa import SDPA_BACKENDS, visible
from attnfuzz.reference.case import Case, Mode, QueryView, Scales, Step, Views
from attnfuzz.reference.edges import edges_of


@pytest.mark.parametrize("window_left", [-1, 0, 1, 3])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (4, 4), (3, 7), (5, 2), (2, 0), (0, 3)])
def test_the_mask_equals_that_of_a_scalar_loop(q_len: int, kv_len: int, window_left: int) -> None:
    mask = visible(q_len, kv_len, window_left)
    assert mask.shape == (q_len, kv_len)
    for query in range(q_len):
        own = kv_len - q_len + query
        for key in range(kv_len):
            assert bool(mask[query, key]) == (key <= own and (window_left < 0 or own - key <= window_left))


@pytest.mark.parametrize("window_left", [-1, 0, 5])
@pytest.mark.parametrize(
    "steps",
    [
        step(Mode.DECODE, (1, 0), (1, 1), (1, 30)),
        step(Mode.EXTEND, (3, 0), (4, 2), (0, 5), (7, 7), (2, 19)),
        step(Mode.TARGET_VERIFY, (4, 4), (4, 21), stride=4),
    ],
)
def test_corner_cases_pass(steps: Step, window_left: int) -> None:
    geometry = msgspec.structs.replace(HEADS, window_left=window_left, head_dim_vo=8)
    for query in (QueryView.CONTIGUOUS, QueryView.FUSED_QKV):
        assert passed(Case(backend="torch_sdpa", geometry=geometry, steps=(steps,), views=Views(query=query))).rows


@pytest.mark.parametrize("scales", [Scales(softmax=0.0), Scales(softmax=-0.6)])
def test_scales_of_0_and_below_are_nan_and_apart(scales: Scales) -> None:
    case = Case(backend="torch_sdpa_any_scale", geometry=HEADS, steps=(step(Mode.EXTEND, (2, 2)),), scales=scales)
    assert {each.kind for each in run(case).observations} == {Kind.NOT_FINITE}
    (edge,) = edges_of(case)
    plain, _, any_scale = ({rule.edge for rule in backend.capability.edges} for backend in SDPA_BACKENDS)
    assert edge in any_scale - plain


@pytest.mark.slow
@examples(20, 200)
def test_drawn_cases_pass(count: int) -> None:
    for case in lighter(drawn("torch_sdpa", count)):
        passed(case)


@pytest.mark.parametrize("sums", [True, False])
def test_the_revision_needs_a_torch_that_has_its_bug(monkeypatch: pytest.MonkeyPatch, *, sums: bool) -> None:
    result = torch.full((1, 1, 1, 8), torch.nan if sums else 0.0)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *_: result)
    torch_sdpa.sums_without_keys.cache_clear()
    backend, revision, _ = SDPA_BACKENDS
    assert backend.missing() is None
    assert (revision.missing() is None) == sums
    torch_sdpa.sums_without_keys.cache_clear()
