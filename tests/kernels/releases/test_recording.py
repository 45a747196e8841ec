"""A recorded forward: nothing runs at the capture, numbers are frozen, tensors are live at each replay."""

import pytest
import torch

from attnfuzz.kernels.releases import recording
from attnfuzz.kernels.releases.recording import NotCapturable, Recording

CPU = torch.device("cpu")


def test_a_replay_reads_current_tensors_and_captured_numbers() -> None:
    lengths, added = torch.tensor([1, 2, 3]), 10
    with Recording(CPU) as graph:
        ends = torch.cumsum(lengths + added, dim=0)
    added = 20
    lengths.copy_(torch.tensor([4, 5, 6]))
    graph.replay()
    assert ends.tolist() == [14, 29, 45]
    lengths.zero_()
    graph.replay()
    assert ends.tolist() == [10, 20, 30]


def test_a_capture_writes_nothing_that_was_there_before() -> None:
    pool = torch.zeros(4, 2)
    with Recording(CPU) as graph:
        pool[torch.tensor([1, 3])] = torch.ones(2, 2) * 3
        pool.view(8)[:1].fill_(7)
    assert not pool.any()
    graph.replay()
    assert pool[:, 0].tolist() == [7, 3, 0, 3]


def test_views_of_results_are_views_in_every_replay() -> None:
    source = torch.arange(6.0)
    with Recording(CPU) as graph:
        doubled = (source * 2).view(2, 3)
        row = doubled[1]
        doubled[1, 0] = -1
        again = doubled.transpose(0, 1).contiguous()
    graph.replay()
    assert row.tolist() == [-1, 8, 10]
    assert again.tolist() == [[0, -1], [2, 8], [4, 10]]
    source.zero_()
    graph.replay()
    assert row.tolist() == [-1, 0, 0]


def test_tensors_made_in_a_capture_are_made_anew_by_every_replay() -> None:
    with Recording(CPU) as graph:
        total = torch.zeros(3)
        total += torch.arange(3)
        both = torch.cat([total, torch.full((1,), 9.0)])
    for _ in range(2):
        graph.replay()
        assert both.tolist() == [0, 1, 2, 9]


def test_several_results_of_one_operation_are_all_written() -> None:
    numbers = torch.tensor([3.0, 1.0, 2.0])
    with Recording(CPU) as graph:
        ordered, places = torch.sort(numbers)
    graph.replay()
    assert (ordered.tolist(), places.tolist()) == ([1, 2, 3], [1, 2, 0])


@pytest.mark.parametrize(
    "work",
    [
        lambda numbers: numbers.max().item(),
        lambda numbers: numbers.tolist(),
        lambda numbers: bool(numbers[0] > 0),
        lambda numbers: numbers.nonzero(),
        lambda numbers: numbers[numbers > 1],
        torch.unique,
        lambda numbers: torch.masked_select(numbers, numbers > 1),
        lambda numbers: torch.repeat_interleave(numbers, numbers),
    ],
)
def test_operations_that_wait_for_a_value_cannot_be_captured(work: "object") -> None:
    assert callable(work)
    numbers = torch.tensor([1, 2, 3])
    with pytest.raises(NotCapturable, match="while a graph is captured"), Recording(CPU):
        work(numbers)
    assert Recording.current() is None


def test_a_mask_may_choose_where_its_shape_is_known() -> None:
    numbers = torch.tensor([1, -2, 3])
    with Recording(CPU) as graph:
        numbers.masked_fill_(numbers < 0, 0)
        picked = numbers[torch.tensor([0, 2])]
    graph.replay()
    assert (numbers.tolist(), picked.tolist()) == ([1, 0, 3], [1, 3])


def test_tensors_of_the_host_give_numbers_and_these_are_frozen() -> None:
    on_host, live = torch.tensor([3, 5]), torch.tensor([1, 1])
    with Recording(CPU, host=(on_host,)) as graph:
        longest = (on_host + 1).max().item()
        sums = live * longest
    on_host.fill_(100)
    graph.replay()
    assert (longest, sums.tolist()) == (6, [6, 6])


def test_operations_on_the_host_run_at_once_and_copies_to_a_gpu_do_not() -> None:
    """A tensor without values stands for one on a GPU."""
    gpu = torch.device("meta")
    with Recording(gpu) as graph:
        lengths = torch.tensor([3, 5]) + 1
        longest = lengths.max().item()
        lengths.to(gpu)
    assert longest == 6
    assert len(graph) == 1


def test_other_work_runs_between_the_operations_recorded_around_it() -> None:
    seen: list[list[int]] = []
    numbers = torch.tensor([1, 2])
    with Recording(CPU) as graph:
        numbers.add_(1)
        graph.keep(lambda: seen.append(numbers.tolist()))
        numbers.add_(1)
    assert seen == []
    graph.replay()
    assert (seen, numbers.tolist()) == ([[2, 3]], [3, 4])


def test_operations_outside_a_recording_run_once_and_at_once() -> None:
    counter = torch.zeros(1)
    with Recording(CPU) as graph, recording.outside():
        counter += 1
    graph.replay()
    assert counter.item() == 1


def test_operations_on_shapes_that_differ_from_those_of_the_values_stay_right() -> None:
    """Results lie as the operation lays them out, not as their arguments do."""
    numbers = torch.arange(6.0).view(2, 3).t()
    with Recording(CPU) as graph:
        kept = numbers * 1
        dense = numbers.reshape(6)
    graph.replay()
    assert kept.stride() == numbers.stride()
    assert dense.tolist() == numbers.flatten().tolist()
