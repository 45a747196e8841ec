"""The release's own pools lie over guarded memory, and hold before a step what a server's hold."""

import math

import pytest
import torch
from harness_cases import GEOMETRY, LATENT
from loaded_tree import LoadedTree, served, served_case
from msgspec.structs import replace

from attnfuzz.harness.memory.guarded import PlainMemory
from attnfuzz.kernels.interface.backend import Bench, Unsupported
from attnfuzz.kernels.sglang.pool import ServerPool
from attnfuzz.reference.case import Case, KvView, Mode, Outputs, PageOrder, Pages, Request, Step, TableTail, Views
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout

_FP8 = replace(GEOMETRY, kv_dtype=DType.FLOAT8_E4M3)


def _verify(*requests: Request) -> Step:
    """A verify of four drafts for each request."""
    return Step(mode=Mode.TARGET_VERIFY, requests=requests, padded_tokens=4 * len(requests), tokens_per_request=4)


_STEP = _verify(Request(0, 4, 9), Request(1, 4, 6))


@pytest.mark.parametrize("geometry", [GEOMETRY, _FP8, LATENT], ids=["heads", "fp8", "latents"])
def test_the_pool_of_the_release_shares_our_memory(loaded: LoadedTree, geometry: Geometry) -> None:
    server = served(loaded, served_case(geometry, _STEP))
    pool = server.model_runner.token_to_kv_pool
    buffers = [getattr(pool, name)[0] for name in ("k_buffer", "v_buffer", "kv_buffer") if hasattr(pool, name)]
    ours = [tensor for tensor in (server.pool.keys, server.pool.values) if tensor is not None]
    assert [buffer.data_ptr() for buffer in buffers] == [tensor.data_ptr() for tensor in ours]
    assert {buffer.dtype for buffer in buffers} == {pool.store_dtype}


def test_a_pool_of_another_shape_than_ours_is_refused(loaded: LoadedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerPool, "size", property(lambda _: 4))
    with pytest.raises(Unsupported, match=r"k_buffer is \(8, 2, 8\)"):
        served(loaded, served_case(GEOMETRY, _STEP))


@pytest.mark.parametrize(
    "case",
    [
        Case(backend="sglang", geometry=GEOMETRY, steps=(_STEP,)),
        Case(
            backend="sglang",
            geometry=replace(GEOMETRY, kv_layout=KvLayout.NHD),
            steps=(_STEP,),
            views=Views(kv=KvView.TOKEN_MAJOR),
        ),
    ],
    ids=["separate pools", "NHD"],
)
def test_a_layout_that_is_not_sglangs_is_unsupported(case: Case) -> None:
    with pytest.raises(Unsupported, match="token-major"):
        ServerPool(case, Bench(PlainMemory(Outputs.POISONED), None, torch.device("cpu")))  # type: ignore[arg-type] # launches nothing


def test_before_a_step_the_pool_holds_prefixes_and_the_dummy_page_alone(loaded: LoadedTree) -> None:
    server = served(loaded, served_case(GEOMETRY, _STEP, pages=Pages(order=PageOrder.REVERSED)))
    server.prepare_step(_STEP)
    held = server.pool.locations(0)[:5] + server.pool.locations(1)[:2] + list(range(4))
    finite = server.pool.keys.isfinite().all(dim=(1, 2))
    assert sorted(held) == finite.nonzero().flatten().tolist()
    expected = server.pool.tokens.keys(0, 5)
    assert torch.equal(server.pool.keys[server.pool.locations(0)[:5]], expected)


def test_new_tokens_go_where_no_other_request_has_any(loaded: LoadedTree) -> None:
    server = served(loaded, served_case(GEOMETRY, _STEP, pages=Pages(order=PageOrder.SHUFFLED), seed=5))
    new = server.pool.new_locations(_STEP)
    assert new == server.pool.locations(0)[5:9] + server.pool.locations(1)[2:6]
    assert len(set(new)) == 8
    assert min(new) >= GEOMETRY.page_size


def test_rejected_drafts_are_still_there_when_a_draft_is_extended(loaded: LoadedTree) -> None:
    step = Step(mode=Mode.DRAFT_EXTEND, requests=(Request(0, 1, 6),), padded_tokens=1, tokens_per_request=4)
    server = served(loaded, served_case(replace(GEOMETRY, page_size=16), step))
    server.prepare_step(step)
    finite = [bool(row.isfinite().all()) for row in server.pool.keys[server.pool.locations(0)]]
    # Positions 5 to 8 were drafted; the release writes what was accepted, 5, once more.
    assert finite == [True] * 9 + [False] * 7


def test_a_row_has_the_locations_of_its_requests_tokens(loaded: LoadedTree) -> None:
    server = served(loaded, served_case(GEOMETRY, _STEP))
    server.prepare_step(_STEP)
    for slot, length in ((0, 9), (1, 6)):
        row = server.model_runner.req_to_token_pool.req_to_token[server.rows.of[slot]]
        assert row[:length].tolist() == server.pool.locations(slot)[:length]


def test_the_first_request_has_the_row_that_padded_rows_name_too(loaded: LoadedTree) -> None:
    server = served(loaded, served_case(GEOMETRY, _STEP))
    assert server.rows.of == {0: 0, 1: 1}


@pytest.mark.parametrize(
    ("order", "rows"), [(PageOrder.IDENTITY, [0, 1, 2]), (PageOrder.REVERSED, [2, 1, 0]), (PageOrder.SHUFFLED, None)]
)
def test_rows_are_handed_out_as_pages_are(loaded: LoadedTree, order: PageOrder, rows: list[int] | None) -> None:
    step = _verify(Request(0, 4, 5), Request(1, 4, 5), Request(2, 4, 5))
    server = served(loaded, served_case(GEOMETRY, step, pages=Pages(order=order), seed=1))
    assert sorted(server.rows.of.values()) == [0, 1, 2]
    if rows is not None:
        assert list(server.rows.of.values()) == rows


@pytest.mark.parametrize("tail", list(TableTail))
def test_columns_beyond_a_request_hold_the_tail_of_the_case_and_no_illegal_page(
    loaded: LoadedTree, tail: TableTail
) -> None:
    server = served(loaded, served_case(GEOMETRY, _STEP, pages=Pages(tail=tail, spare=2)))
    server.prepare_step(_STEP)
    beyond = server.rows.table[server.rows.of[1], 6:]
    pages = set((beyond // GEOMETRY.page_size).tolist())
    match tail:
        case TableTail.ZEROS | TableTail.MINUS_ONE:
            assert pages == {0}
        case TableTail.POISON:
            assert pages == {server.pool.paged.poison_page}
        case TableTail.STALE:
            owned = {page for owner in server.pool.paged.pages.values() for page in owner}
            assert pages <= owned


def test_a_request_that_grows_keeps_its_row_and_its_tail(loaded: LoadedTree) -> None:
    first, then = _verify(Request(0, 4, 5)), _verify(Request(0, 4, 9))
    server = served(loaded, served_case(GEOMETRY, first, then, pages=Pages(tail=TableTail.POISON)))
    server.prepare_step(first)
    row = server.rows.table[server.rows.of[0]]
    poison = server.pool.paged.poison_page
    assert int(row[5]) // GEOMETRY.page_size == poison
    server.prepare_step(then)
    assert row[:9].tolist() == server.pool.locations(0)[:9]
    assert int(row[9]) // GEOMETRY.page_size == poison


def test_rejected_drafts_keep_their_locations_or_get_the_dummy_page(loaded: LoadedTree) -> None:
    step = Step(mode=Mode.DRAFT_EXTEND, requests=(Request(0, 1, 4),), padded_tokens=1, tokens_per_request=4)
    server = served(loaded, served_case(GEOMETRY, step, pages=Pages(tail=TableTail.POISON)))
    server.prepare_step(step)
    row = server.rows.table[server.rows.of[0]].tolist()
    assert row[:7] == [*server.pool.locations(0), 0, 0, 0]
    assert math.prod(row[7:]) > 0
