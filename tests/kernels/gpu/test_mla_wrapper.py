"""What the MLA wrapper is planned for: metadata in guarded memory, and buffers that stay where a graph reads them."""

from collections.abc import Callable
from itertools import chain

import msgspec
import pytest
import torch
from recorder import Recorder
from small_cases import step

from attnfuzz.kernels.gpu import flashinfer_op
from attnfuzz.kernels.gpu.direct.mla import MLA_BUCKET, MlaBatch, MlaWrapper, StaticSize, workspace_bytes
from attnfuzz.kernels.interface.backend import Bench, Unsupported
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.geometry import Latent

pytest.importorskip("flashinfer", reason="calls are bound to the installed signatures")

_GEOMETRY = msgspec.structs.replace(MLA_BUCKET.simplest, page_size=16)


class _Fake(MlaWrapper):
    module = "fake_mla"

    @property
    def metadata(self) -> dict[str, torch.Tensor]:
        """What a launch would read."""
        metadata: dict[str, torch.Tensor] = self._wrapper._metadata
        return metadata


def _case(*lengths: tuple[int, int]) -> Case:
    return Case(backend="mla_fa3", geometry=_GEOMETRY, steps=(step(Mode.EXTEND, *lengths),))


def test_a_batch_names_owned_pages_and_the_dummy_page_for_the_rest(bench_of: Callable[..., Bench]) -> None:
    case = _case((1, 33), (2, 0))
    kv = PagedKv(case, bench_of(case))
    rows = [Row(0, 1, 33, 33), Row(1, 2, 0, 0), Row(0, 4, 40, 33), Row(None, 1, 17, 0)]
    batch = MlaBatch.of(rows, kv)
    assert (batch.q_lens, batch.kv_lens) == ([1, 2, 4, 1], [33, 0, 40, 17])
    assert batch.pages == [kv.pages[0], [], kv.pages[0], [DUMMY_PAGE] * 2]


def test_plans_for_a_graph_fill_the_same_buffers(bench_of: Callable[..., Bench]) -> None:
    case = _case((1, 33))
    wrapper = _Fake(case, bench_of(case), "fa3", StaticSize(requests=2, pages=8))
    seen = []
    for kv_lens, pages in (([33, 1], [[3, 1, 2], [0]]), ([16, 0], [[2], []])):
        wrapper.plan(MlaBatch([1, 1], kv_lens, pages), 0.1)
        assert wrapper.metadata["kv_len_arr"].tolist() == kv_lens
        ids = list(chain.from_iterable(pages))
        assert wrapper.metadata["kv_indices"].tolist()[: len(ids)] == ids
        seen.append({name: tensor.data_ptr() for name, tensor in wrapper.metadata.items()})
    assert seen[0] == seen[1]
    assert len(wrapper.metadata["kv_indices"]) == 8


@pytest.mark.parametrize("static", [None, StaticSize(requests=1, pages=4)])
def test_tensors_held_by_a_wrapper_are_recorded_with_a_launch(
    bench_of: Callable[..., Bench], static: StaticSize | None
) -> None:
    case, recorder = _case((1, 33)), Recorder()
    bench = bench_of(case, recorder)
    kv = PagedKv(case, bench)
    kv.write(case.steps[0])
    wrapper = _Fake(case, bench, "fa3", static)
    wrapper.plan(MlaBatch([1], [33], [kv.pages[0]]), 0.1)
    geometry = case.geometry
    query = bench.memory.copy("query", torch.ones(1, geometry.q_heads, 576, dtype=torch.bfloat16))
    assert isinstance(kv.cache, torch.Tensor)
    wrapper.launch(query, kv.cache, Results.place(case, bench, 1))
    planned, launched = recorder.launches
    for each in (planned, launched):
        assert each.arguments["float_workspace_buffer"].numel() == workspace_bytes(Latent(), processors=132)
        assert "float_workspace_buffer" in each.op.writes
        assert each.op.writes.isdisjoint(wrapper.metadata)
    for name, tensor in wrapper.metadata.items():
        assert torch.equal(launched.arguments[name], tensor)
        assert torch.equal(planned.arguments[name], tensor[: len(planned.arguments[name])])
    buffers = {name for name in planned.op.writes if name in planned.arguments} - {"float_workspace_buffer"}
    assert buffers == ({f"{name}_buf" for name in wrapper.metadata} if static else set())


class _BackendPlanUnsupportedError(ValueError):
    """As FlashInfer calls its own."""


@pytest.mark.parametrize(("error", "raised"), [(_BackendPlanUnsupportedError, Unsupported), (ValueError, ValueError)])
def test_a_batch_that_flashinfer_refuses_is_unsupported(
    bench_of: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, error: type[ValueError], raised: type[Exception]
) -> None:
    case = _case((1, 1))
    wrapper = _Fake(case, bench_of(case), "fa2")

    def refuse(*_: object, **__: object) -> None:
        raise error("would omit a visible key")

    monkeypatch.setattr(flashinfer_op, "call_method", refuse)
    with pytest.raises(raised, match="would omit a visible key") as caught:
        wrapper.plan(MlaBatch([1], [1], [[0]]), 0.1)
    assert type(caught.value) is raised


def test_the_workspace_has_the_size_that_an_h100_requires() -> None:
    # "Buffer overflow when allocating memory for mla_partial_o with size 17301504", and an LSE for each of its rows.
    assert workspace_bytes(Latent(), processors=132) == 17301504 + 2 * 64 * 132 * 4
