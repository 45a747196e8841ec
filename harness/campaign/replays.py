"""Cases to run again before drawing: past findings, reported bugs, and the corpus."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest

from msgspec.structs import replace

from attnfuzz.harness.corpus import Corpus
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.search.drawn_part import EVERYTHING, DrawnPart
from attnfuzz.harness.search.examples import derive_seed, drawn_capability
from attnfuzz.harness.search.messages import Replay, Slice, SliceKind
from attnfuzz.kernels.interface.guests import shipped
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_file import case_id

REPLAYS_PER_SLICE = 20


class Replays:
    """Slices of cases to run again, each handed out once, the findings' cases first.

    `kept` returns the other cases of a backend, the most important first; at most `most` of them are run. A slice's
    seed follows from its cases, so that a resumed campaign knows from the seeds in `done` which ones it ran. `checked`
    names findings that were run again.
    """

    def __init__(
        self,
        backends: Sequence[str],
        *,
        past: Iterable[Record],
        kept: Callable[[str], Iterable[AnyCase]],
        seed: int,
        most: int | None = None,
        done: Collection[int] = (),
        checked: Collection[str] = (),
    ) -> None:
        self._seed = seed
        self._done = done
        self._checked = checked
        self._left: dict[int, int] = {}
        findings = [
            Replay(
                case=record.case,
                finding=record.name,
                failed=(record.observation,),
                recurrence=record.recurrence,
                history=record.before,
            )
            for record in past
        ]
        cases = {replay.case for replay in findings}
        self._findings = deque(
            task
            for backend in backends
            for task in self._slices(backend, [each for each in findings if each.case.backend == backend])
        )
        rows = [self._slices(backend, _others(kept(backend), cases, most)) for backend in backends]
        self._kept = deque(task for task in chain.from_iterable(zip_longest(*rows)) if task is not None)
        self._left_out = 0

    @property
    def findings_left(self) -> frozenset[str]:
        """The findings whose cases were not handed out yet."""
        return frozenset(each.finding for task in self._findings for each in task.replays if each.finding is not None)

    @property
    def kept_left(self) -> int:
        """The number of other cases not handed out yet."""
        return self._left_out + sum(len(task.replays) for task in self._kept)

    def next_slice(self, seconds_for_kept: float | None) -> Slice | None:
        """Return the next slice, or None. Kept cases without findings may take `seconds_for_kept`, if given."""
        if self._findings:
            return self._findings.popleft()
        if seconds_for_kept is not None and seconds_for_kept <= 0:
            self._left_out = self.kept_left
            self._kept.clear()
        return replace(self._kept.popleft(), seconds=seconds_for_kept) if self._kept else None

    def put_back(self, task: Slice) -> bool:
        """Hand out an unfinished slice again, without its checked findings.

        Returns False if it was handed out again before, and has made no progress since.
        """
        replays = tuple(replay for replay in task.replays if replay.finding not in self._checked)
        if self._left.get(task.seed, len(replays) + 1) <= len(replays):
            return False
        self._left[task.seed] = len(replays)
        if replays:
            queue = self._kept if replays[0].finding is None else self._findings
            queue.appendleft(replace(task, replays=replays))
        return True

    def _slices(self, backend: str, replays: Sequence[Replay]) -> Iterator[Slice]:
        for first in range(0, len(replays), REPLAYS_PER_SLICE):
            task = replay_slice(backend, SliceKind.KEPT, replays[first : first + REPLAYS_PER_SLICE], seed=self._seed)
            left = tuple(replay for replay in task.replays if replay.finding not in self._checked)
            if left and task.seed not in self._done:
                yield replace(task, replays=left)


def kept_cases(corpus: Corpus, part: DrawnPart = EVERYTHING) -> Callable[[str], Iterator[AnyCase]]:
    """Return a function to the kept cases in this part of a backend: those of its reported bugs, and its corpus."""

    def kept(backend: str) -> Iterator[AnyCase]:
        for reported in shipped("attnfuzz.reported").values():
            yield from filter(permitted, reported(backend))
        yield from filter(permitted, corpus.replays(backend))

    permitted = partial(may_run, part=part)
    return kept


def may_run(case: AnyCase, part: DrawnPart) -> bool:
    """Return whether to run an earlier case again, because it is in the part that is drawn."""
    return part == EVERYTHING or drawn_capability(case.backend, part).why_not(case) is None


def replay_slice(backend: str, kind: SliceKind, replays: Sequence[Replay], *, seed: int) -> Slice:
    """Return a slice of `backend` that runs `replays` and draws nothing."""
    own = derive_seed(seed, backend, "replays", *(case_id(replay.case) for replay in replays))
    return Slice(backend=backend, kind=kind, seed=own, examples=0, replays=tuple(replays))


def _others(cases: Iterable[AnyCase], taken: Collection[AnyCase], most: int | None) -> list[Replay]:
    others = dict.fromkeys(case for case in cases if case not in taken)
    return [Replay(case=case) for case in others][:most]
