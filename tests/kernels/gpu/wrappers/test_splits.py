"""How steps are divided for wrappers that take parts of them."""

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from small_cases import step

from attnfuzz.kernels.gpu.wrappers.cascade import Split, common_pages
from attnfuzz.kernels.gpu.wrappers.pod import Part, many_prefills, one_prefill
from attnfuzz.kernels.gpu.wrappers.sparse import Columns, Matrix
from attnfuzz.kernels.interface.backend import Bench, Unsupported
from attnfuzz.kernels.libraries.torch_sdpa import visible
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import PageTable, Row
from attnfuzz.reference.case import Case, Mode, PageOrder, Pages, Request, Step
from attnfuzz.reference.geometry import Geometry


def extend(*lengths: tuple[int, int]) -> Step:
    return step(Mode.EXTEND, *lengths)


def lengths(parts: list[Part]) -> list[tuple[int, int, int]]:
    """First row, queries and keys of each."""
    return [(part.first, part.row.q_len, part.row.kv_len) for part in parts]


def test_the_longest_request_is_the_prefill_and_each_other_query_a_decode() -> None:
    halves = one_prefill(extend((1, 9), (3, 20), (2, 5), (0, 4)))
    assert lengths(halves.prefill) == [(1, 3, 20)]
    assert lengths(halves.decode) == [(0, 1, 9), (4, 1, 4), (5, 1, 5)]


def test_the_last_query_of_a_lone_request_is_the_decode() -> None:
    for split in (one_prefill, many_prefills):
        halves = split(extend((3, 20)))
        assert (lengths(halves.prefill), lengths(halves.decode)) == ([(0, 2, 19)], [(2, 1, 20)])


def test_requests_of_one_query_are_the_decodes_of_a_batch() -> None:
    halves = many_prefills(extend((1, 9), (3, 20), (1, 0), (2, 1)))
    assert lengths(halves.prefill) == [(1, 3, 20), (5, 2, 1)]
    assert lengths(halves.decode) == [(0, 1, 9), (4, 1, 0)]
    halves = many_prefills(extend((1, 9), (1, 3)))
    assert (lengths(halves.prefill), lengths(halves.decode)) == ([(0, 1, 9)], [(1, 1, 3)])


@pytest.mark.parametrize("split", [one_prefill, many_prefills])
def test_one_query_has_no_halves(split: Callable[[Step], object]) -> None:
    for lone in ((1, 9), (1, 0)):
        with pytest.raises(Unsupported):
            split(extend(lone))


def test_consecutive_rows_share_pages_that_precede_all_their_queries(bench_of: Callable[..., Bench]) -> None:
    geometry = Geometry(q_heads=1, kv_heads=1, head_dim_qk=16, head_dim_vo=16, page_size=4)
    batch = extend((1, 40), (2, 30), (1, 3))
    case = Case(backend="", geometry=geometry, steps=(batch,), pages=Pages(order=PageOrder.SHARED_PREFIX))
    table = PageTable(case, PagedKv(case, bench_of(case)))
    split = Split.of(table, Row.real(batch), 4, alone=False)
    assert split.groups == [range(2), range(2, 3)]
    assert split.shared == [common_pages(split.pages[:2]), []]
    first, rest = split.levels(4)
    shared = len(split.shared[0])
    assert 1 <= shared <= 7
    assert first.qo_indptr.tolist() == [0, 3, 4]
    assert first.last_page_len.tolist() == [4, 0]
    assert rest.kv_indptr.tolist() == [0, 10 - shared, 18 - 2 * shared, 19 - 2 * shared]
    assert rest.last_page_len.tolist() == [4, 2, 3]
    alone = Split.of(table, Row.real(batch), 4, alone=True)
    assert [len(pages) for pages in alone.shared] == [5, 4, 0]


@pytest.mark.parametrize("side", [1, 4])
def test_a_matrix_has_the_pairs_that_a_causal_step_has(side: int) -> None:
    matrix = Matrix.of(extend((2, 5), (3, 2), (0, 4)), side)
    assert matrix.columns == (11 if side == 1 else 12)
    dense = torch.zeros((len(matrix.indptr) - 1) * side, matrix.columns, dtype=torch.bool)
    for row in range(len(matrix.indptr) - 1):
        for at in range(matrix.indptr[row], matrix.indptr[row + 1]):
            block = torch.ones(1, 1, dtype=torch.bool) if matrix.mask is None else matrix.mask[at]
            column = matrix.indices[at] * side
            dense[row * side : (row + 1) * side, column : column + side] = block
    due = torch.zeros_like(dense)
    due[:2, :5], due[2:5, 5:7] = visible(2, 5, -1), visible(3, 2, -1)
    assert torch.equal(dense, due)


@pytest.mark.parametrize(("q_len", "kv_len"), [(2, 7), (1, 1), (3, 2), (2, 3), (1, 0)])
def test_blocks_of_keys_differ_between_heads_and_hold_the_same_keys(q_len: int, kv_len: int) -> None:
    columns = Columns.of(Request(0, q_len, kv_len), heads=3)
    assert len({len(sizes) for sizes in columns.sizes}) == 1
    for sizes in columns.sizes:
        assert sum(sizes) == kv_len
        assert all(sizes)
        seen = [sum(sizes[:count]) for count in columns.seen]
        assert seen == visible(q_len, kv_len, -1).sum(dim=1).tolist()
    assert (len({tuple(sizes) for sizes in columns.sizes}) > 1) == (kv_len - q_len > 2)


def test_a_step_of_padding_has_no_parts() -> None:
    assert Part.of(replace(extend(), padded_tokens=3)) == []
