"""RankThreads that share keys, without a release: their turns, their collectives, and the shares of their pools."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnfuzz.harness.judge.written import judge_written
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.releases.recording import Recording
from attnfuzz.kernels.vllm.dcp.group import RankGroup
from attnfuzz.kernels.vllm.dcp.ranks import RankThreads, Variable
from attnfuzz.kernels.vllm.dcp.sharded_pool import RankPool, ShardedPool
from attnfuzz.kernels.vllm.dcp.sharding import Sharding
from attnfuzz.kernels.vllm.pool import PackedKv, SplitKv
from attnfuzz.reference.case import Case, Mode, PageOrder, Pages, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.serving import Interleave, SharedKeys

PAGE = 4
GEOMETRY = Geometry(
    q_heads=4, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=PAGE, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16
)
EXTEND = Step(mode=Mode.EXTEND, requests=(Request(0, 5, 19), Request(1, 3, 3)), padded_tokens=8)
DECODE = Step(mode=Mode.DECODE, requests=(Request(0, 1, 2),), padded_tokens=1, tokens_per_request=1)


def case(*steps: Step, seed: int = 0, **more: Any) -> Case:
    return Case(backend="vllm", geometry=GEOMETRY, steps=steps, seed=seed, **more)


def together(*works: Callable[[], Any], ranks: RankThreads | None = None) -> list[Any]:
    return (ranks or RankThreads(len(works), [])).run(works, nullcontext)


def grouped(number: int, work: Callable[[RankGroup], Any]) -> list[Any]:
    """The results of the same work on each rank of a group."""
    ranks = RankThreads(number, [])
    group = RankGroup(ranks)
    return ranks.run([lambda: work(group)] * number, nullcontext)


def test_a_rank_runs_alone_until_its_collective() -> None:
    ranks, order = RankThreads(3, []), []

    def work() -> None:
        for each in "ab":
            order.append((ranks.rank, each))
            ranks.exchange("gather", torch.zeros(1))

    for _ in range(2):
        together(work, work, work, ranks=ranks)
        assert order == [(rank, each) for each in "ab" for rank in range(3)]
        order.clear()


def test_a_later_change_does_not_reach_a_tensor_given_to_other_ranks() -> None:
    ranks = RankThreads(2, [])

    def work() -> list[float]:
        mine = torch.tensor([float(ranks.rank)])
        given = ranks.exchange("gather", mine)
        mine.fill_(7)
        given += ranks.exchange("gather", mine)
        return torch.cat(given).tolist()

    assert together(work, work, ranks=ranks) == [[0, 1, 7, 7]] * 2


def test_a_rank_has_its_own_values_of_a_process() -> None:
    module = SimpleNamespace(number=0)
    ranks = RankThreads(2, [Variable(module, "number")])

    def work() -> list[int]:
        seen = [module.number]
        module.number += 1 + ranks.rank
        ranks.exchange("gather", torch.zeros(1))
        return [*seen, module.number]

    assert together(work, work, ranks=ranks) == [[0, 1], [0, 2]]
    assert together(work, work, ranks=ranks) == [[1, 2], [2, 4]]
    with ranks.alone(1):
        assert (ranks.rank, module.number) == (1, 4)
    assert module.number == 0


def test_an_error_of_a_rank_ends_the_others() -> None:
    ranks = RankThreads(3, [])

    def work() -> None:
        if ranks.rank == 1:
            raise Unsupported("no")
        ranks.exchange("gather", torch.zeros(1))

    for _ in range(2):
        with pytest.raises(Unsupported, match="no"):
            together(work, work, work, ranks=ranks)
    assert together(*[lambda: ranks.rank] * 3, ranks=ranks) == [0, 1, 2]


def test_ranks_that_would_wait_for_each_other_are_an_error() -> None:
    ranks = RankThreads(2, [])

    def skipped() -> None:
        if ranks.rank == 0:
            ranks.exchange("gather", torch.zeros(2, dtype=torch.float16))

    def other() -> None:
        ranks.exchange("gather", torch.zeros(2 + ranks.rank))

    with pytest.raises(RuntimeError, match=r"rank 0 waits in gather of torch.float16 \[2\], and rank 1 has ended"):
        together(skipped, skipped, ranks=ranks)
    with pytest.raises(RuntimeError, match=r"gather of torch.float32 \[2\], and rank 1 in gather of .* \[3\]"):
        together(other, other, ranks=ranks)


def test_the_collectives_are_those_of_a_group_of_processes() -> None:
    def work(group: RankGroup) -> tuple[torch.Tensor, ...]:
        mine = torch.arange(8.0).view(2, 4) + 100 * group.rank_in_group
        exchanged = torch.empty(8)
        group.all_to_all_single(exchanged, mine.flatten(), group=None, async_op=True).wait()
        return group.all_gather(mine, dim=1), group.reduce_scatter(mine, dim=1), exchanged

    both = torch.cat((torch.arange(8.0).view(2, 4), torch.arange(8.0).view(2, 4) + 100), dim=1)
    total = both[:, :4] + both[:, 4:]
    for rank, (gathered, reduced, exchanged) in enumerate(grouped(2, work)):
        assert torch.equal(gathered, both)
        assert torch.equal(reduced, total[:, 2 * rank : 2 * rank + 2])
        assert exchanged.tolist() == [*range(4 * rank, 4 * rank + 4), *range(100 + 4 * rank, 104 + 4 * rank)]


def test_a_gather_of_a_view_with_gaps_is_refused() -> None:
    with pytest.raises(RuntimeError, match="not contiguous"):
        grouped(2, lambda group: group.all_gather(torch.zeros(4, 4)[:, :2], dim=0))


def test_a_captured_collective_exchanges_at_each_replay() -> None:
    ranks = RankThreads(2, [])
    group, inputs, graphs = (
        RankGroup(ranks),
        [torch.zeros(1), torch.zeros(1)],
        [Recording(torch.device("cpu")) for _ in range(2)],
    )

    def capture() -> torch.Tensor:
        with graphs[ranks.rank]:
            return group.all_gather(inputs[ranks.rank] * 2, dim=0)

    outs = together(capture, capture, ranks=ranks)
    for numbers in ((1.0, 2.0), (5.0, 6.0)):
        for tensor, number in zip(inputs, numbers, strict=True):
            tensor.fill_(number)
        together(*(graph.replay for graph in graphs), ranks=ranks)
        assert [out.tolist() for out in outs] == [[2 * number for number in numbers]] * 2


def test_tokens_go_to_the_ranks_in_turn() -> None:
    sharding = Sharding(ranks=2, interleave=2, all_to_all=False)
    assert sharding.positions(0, 7).tolist() == [0, 1, 4, 5]
    assert sharding.positions(1, 7).tolist() == [2, 3, 6]
    local = sharding.local(1, EXTEND)
    assert [(each.q_len, each.kv_len) for each in local.requests] == [(3, 9), (1, 1)]


def test_a_server_shares_keys_as_its_case_says() -> None:
    shared = SharedKeys(ranks=4, interleave=Interleave.QUARTER_PAGE, all_to_all=True)
    assert Sharding.of(case(EXTEND)) == Sharding(ranks=2, interleave=1, all_to_all=False)
    assert Sharding.of(case(EXTEND, shared_keys=shared)) == Sharding(ranks=4, interleave=PAGE // 4, all_to_all=True)


@pytest.mark.parametrize("form", [PackedKv, SplitKv])
@pytest.mark.parametrize("interleave", [1, 2, PAGE])
@pytest.mark.parametrize("order", [PageOrder.SHUFFLED, PageOrder.SHARED_PREFIX])
def test_the_shares_of_all_ranks_are_the_tokens_of_a_request(
    form: type[PackedKv], interleave: int, order: PageOrder, bench_of: Callable[[Case], Any]
) -> None:
    ranks, whole = 2, case(EXTEND, pages=Pages(order=order))
    sharding = Sharding(ranks, interleave, all_to_all=False)
    pools = [RankPool(whole, bench_of(whole), form, sharding, rank) for rank in range(ranks)]
    assert pools[0].block_size == ranks * PAGE
    request, tokens = EXTEND.requests[0], pools[0].tokens
    for pool in pools:
        pool.write_before(EXTEND)
        assert pool.pages(request) == pools[0].pages(request)
        assert len(pool.pages(request)) == 3
    for position in range(request.kv_len - request.q_len):
        block, within = divmod(position, ranks * PAGE)
        turn, place = divmod(within, interleave)
        rank, slot = turn % ranks, turn // ranks * interleave + place
        held = pools[rank].paged.resident()[0][pools[rank].pages(request)[block], slot]
        assert torch.equal(held.view(torch.float16), tokens.key[tokens.spans[0].start + position])


def test_the_writes_of_each_rank_are_named_after_its_tokens(bench_of: Callable[[Case], Any]) -> None:
    whole = case(DECODE, EXTEND)
    pool = ShardedPool(whole, bench_of(whole), PackedKv)
    pool.write_before(EXTEND)
    written = pool.written(EXTEND)
    assert sorted(written.tokens) == [(0, token) for token in range(5)] + [(1, token) for token in range(3)]
    for tensor in written.tensors:
        rank = int(tensor.name[-1])
        for n, (request, token) in enumerate(written.tokens[tensor.first :][: tensor.at.shape[1]]):
            of = EXTEND.requests[request]
            position = of.kv_len - of.q_len + token
            assert position // pool.sharding.interleave % pool.sharding.ranks == rank
            tokens = pool.ranks[0].tokens
            due = tokens.key if tensor.name.startswith("key") else tokens.value
            assert torch.equal(tensor.low[n], due[tokens.spans[of.slot].start + position])


def test_a_write_that_is_missing_is_reported_by_the_token_of_its_rank(bench_of: Callable[[Case], Any]) -> None:
    whole = case(EXTEND)
    pool = ShardedPool(whole, bench_of(whole), PackedKv)
    pool.write_before(EXTEND)
    found = judge_written(pool.written(EXTEND), partial(Observation, step=0, mode="", kernel="")).observations
    for each in found:
        assert each.kind is Kind.UNWRITTEN
        assert each.row is not None
        request = EXTEND.requests[each.row.request]
        position = request.kv_len - request.q_len + each.row.token
        rank = position // pool.sharding.interleave % pool.sharding.ranks
        assert each.place in (f"key_cache of rank {rank}", f"value_cache of rank {rank}")
    assert {each.place[:9] for each in found} == {"key_cache", "value_cac"}


def test_the_contents_that_are_due_are_put_into_all_pools(bench_of: Callable[[Case], Any]) -> None:
    whole = case(EXTEND)
    pool = ShardedPool(whole, bench_of(whole), PackedKv)
    pool.write_before(EXTEND)
    pool.restore(pool.written(EXTEND).due())
    assert all(tensor.as_due for tensor in pool.written(EXTEND).tensors)
