"""Which slice comes next."""

from attnfuzz.harness.campaign.schedule import EXAMPLES_PER_SLICE, Schedule


def test_backends_take_turns() -> None:
    schedule = Schedule(["a", "b"], examples=None, seed=0)
    slices = [schedule.next_slice() for _ in range(4)]
    assert [(task.backend, task.index) for task in slices if task] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_each_backend_gets_its_examples_and_no_more() -> None:
    schedule = Schedule(["a", "b"], examples=EXAMPLES_PER_SLICE + 1, seed=0)
    slices = [schedule.next_slice() for _ in range(4)]
    assert [task.examples for task in slices if task] == [EXAMPLES_PER_SLICE, EXAMPLES_PER_SLICE, 1, 1]
    assert schedule.next_slice() is None


def test_examples_that_are_given_back_are_handed_out_again() -> None:
    schedule = Schedule(["a"], examples=10, seed=0)
    assert schedule.next_slice() is not None
    assert schedule.next_slice() is None
    schedule.give_back("a", 4)
    again = schedule.next_slice()
    assert again is not None
    assert (again.examples, again.index) == (4, 1)


def test_seeds_follow_from_the_campaigns_seed() -> None:
    def seeds(seed: int) -> list[int]:
        schedule = Schedule(["a", "b"], examples=None, seed=seed)
        return [task.seed for task in (schedule.next_slice() for _ in range(6)) if task]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 12
