"""Outputs brought to the host: bit by bit, and one copy for all that lies in one storage."""

from dataclasses import dataclass
from typing import NamedTuple

import fake_guards
import pytest
import torch

from attnfuzz.harness.inside import places
from attnfuzz.harness.inside.places import Moving, on_host, tensors_in, with_tensors
from attnfuzz.kernels.cuda import guards
from attnfuzz.kernels.interface.backend import Attended, JudgedOnHost, Output
from attnfuzz.kernels.interface.transfers import Pending, done
from attnfuzz.kernels.recurrent.result import StateResult
from attnfuzz.kernels.sparse.results import SparseResult
from attnfuzz.reference.dtypes import DType


@pytest.fixture(params=["each by itself", "gathered"])
def _copied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How copies are made: by torch, or by one launch, as of few bytes of a GPU."""
    if request.param == "gathered":
        fake_guards.install(monkeypatch.setattr)
        monkeypatch.setattr(places, "_few_bytes_of_a_gpu", bool)


HOST = torch.device("cpu")


def random_bits(dtype: DType, *shape: int) -> torch.Tensor:
    """Every pattern of bits, signalling NaNs and their payloads included."""
    limits = torch.iinfo(dtype.bits)
    return torch.randint(limits.min, limits.max + 1, shape, dtype=dtype.bits).view(dtype.torch_dtype)


@pytest.mark.usefixtures("_copied")
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT8_E4M3])
def test_every_bit_of_every_view_is_moved(dtype: DType) -> None:
    whole = random_bits(dtype, 7, 5, 3)
    views = [whole, whole[2:4], whole[:, 1:3], whole.transpose(0, 2), whole[6], whole[3:3], whole[:, 4, 2]]
    moving = Moving(views)
    for view in views:
        copy = moving.of(view)
        assert (copy.shape, copy.stride(), copy.dtype) == (view.shape, view.stride(), view.dtype)
        assert torch.equal(copy.view(dtype.bits), view.view(dtype.bits))
        assert not copy.numel() or copy.data_ptr() != view.data_ptr()


def test_views_of_one_storage_share_one_copy() -> None:
    whole = torch.arange(24.0).reshape(6, 4)
    first, second = whole[1:3], whole[2:5]
    moving = Moving([first, second])
    assert len(moving) == 1
    copy = moving.of(first)
    copy[1] = -1
    assert moving.of(second)[0].tolist() == [-1] * 4
    # From the first of their bytes to the last, not the whole storage.
    assert copy.untyped_storage().nbytes() == 4 * 4 * 4


@pytest.mark.usefixtures("_copied")
def test_tensors_of_other_dtypes_may_share_a_storage() -> None:
    storage = torch.arange(64, dtype=torch.uint8)
    halves, numbers = storage[6:20].view(torch.bfloat16), storage[24:40].view(torch.float32)
    moving = Moving([halves, numbers])
    assert len(moving) == 1
    assert torch.equal(moving.of(halves).view(torch.int16), halves.view(torch.int16))
    assert torch.equal(moving.of(numbers).view(torch.int32), numbers.view(torch.int32))


@pytest.mark.usefixtures("_copied")
def test_tensors_of_several_storages_are_moved_whatever_their_alignment() -> None:
    storages = [random_bits(DType.BFLOAT16, size) for size in (33, 7, 100)]
    views = [storages[0][1:], storages[1][3:], storages[2][5:95].view(9, 10)[:, 2:7], storages[0][4:9]]
    moving = Moving(views)
    assert len(moving) == 3
    for view in views:
        assert torch.equal(moving.of(view).view(torch.int16), view.view(torch.int16))


def test_an_empty_slice_after_the_last_row_adds_nothing_to_the_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []

    def gather(spans: list[tuple[int, int]], device: torch.device) -> tuple[Pending[torch.Tensor], list[int]]:
        assert device == HOST
        read.extend(spans)
        return done(torch.zeros(1000, dtype=torch.uint8)), [0] * len(spans)

    monkeypatch.setattr(places, "_few_bytes_of_a_gpu", bool)
    monkeypatch.setattr(guards, "gather", gather)
    # As a query among its keys: its memory ends with the last element, and the next row would begin behind it.
    query = torch.zeros(30).as_strided((2, 3, 2), (24, 2, 1))
    moving = Moving([query[0:2], query[2:2]])
    assert read == [(query.data_ptr(), 30 * 4)]
    assert moving.of(query[2:2]).shape == (0, 3, 2)
    assert Moving([query[2:2]]).of(query[2:2]).shape == (0, 3, 2)


def test_tensors_on_the_host_are_not_copied() -> None:
    out = torch.zeros(2, 1, 4)
    entry = Attended(first_row=0, query=out, key=out, value=out)
    output = Output(out=out, lse=None, attended=(entry,), bmm1_scale=1.0, bmm2_scale=1.0)
    assert on_host(output).result() is output
    assert Moving([torch.ones(3)]).of(out) is out


class _Pair(NamedTuple):
    first: torch.Tensor
    second: int


@dataclass(frozen=True)
class _Part:
    values: torch.Tensor
    pair: _Pair
    words: str = "kept"


@dataclass(frozen=True)
class _Result(JudgedOnHost):
    parts: tuple[_Part, ...]
    out: torch.Tensor | None


def test_every_tensor_of_a_result_that_is_judged_on_the_host_is_found_and_replaced() -> None:
    tensors = [torch.full((2,), float(number)) for number in range(5)]
    result = _Result((_Part(tensors[0], _Pair(tensors[1], 7)), _Part(tensors[2], _Pair(tensors[3], 8))), tensors[4])
    assert [each.data_ptr() for each in tensors_in(result)] == [each.data_ptr() for each in tensors]
    moved = with_tensors(result, lambda tensor: tensor + 1)
    assert [each.tolist() for each in tensors_in(moved)] == [(each + 1).tolist() for each in tensors]
    assert (moved.parts[1].pair.second, moved.parts[1].words) == (8, "kept")
    assert with_tensors(result, lambda tensor: tensor) is result
    assert on_host(result).result() is result


@pytest.mark.parametrize("kind", [SparseResult, StateResult])
def test_results_of_sparse_attention_and_of_recurrences_are_judged_on_the_host(kind: type) -> None:
    assert issubclass(kind, JudgedOnHost)
