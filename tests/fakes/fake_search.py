"""Stands for cases, a strategy and a judge that take microseconds, for tests of the search without kernels."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.sandbox.case_runner import OneByOne, RepeatingRunner
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Caught, HandedOver, Slice, SliceDone, Tally
from attnfuzz.harness.search.novelty import Novelty
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.geometry import Geometry

GEOMETRY = Geometry(q_heads=2, kv_heads=1, head_dim_qk=16, head_dim_vo=16, page_size=4)
Fails = Callable[[list[int]], tuple[Observation, ...]]


def decode(*kv_lens: int, seed: int = 0) -> Case:
    """A decode step of the backend "fake" with these kv lengths."""
    requests = tuple(Request(slot=slot, q_len=1, kv_len=kv_len) for slot, kv_len in enumerate(kv_lens))
    step = Step(mode=Mode.DECODE, requests=requests, padded_tokens=len(requests), tokens_per_request=1)
    return Case(backend="fake", geometry=GEOMETRY, steps=(step,), seed=seed)


def of_steps(case: AnyCase) -> Case:
    """The case, which is made of steps."""
    assert isinstance(case, Case)
    return case


def kv_lens(case: AnyCase) -> list[int]:
    """The lengths that `decode` was given."""
    return [request.kv_len for request in of_steps(case).steps[0].requests]


def observed(kind: Kind = Kind.OUTPUT_MISMATCH, place: str = "out", *, gap: bool = False) -> Observation:
    """A failure of a decode step."""
    return Observation(kind=kind, place=place, message="wrong", step=0, mode="decode", kernel="decode_op", gap=gap)


def fake_cases() -> SearchStrategy[Case]:
    """Decode steps of 1 to 6 requests."""
    return st.lists(st.integers(0, 200), min_size=1, max_size=6).map(lambda lengths: decode(*lengths))


LONG = 100


def fails_on_long(lengths: list[int]) -> tuple[Observation, ...]:
    """A wrong output where a request has LONG keys or more."""
    return (observed(),) if max(lengths) >= LONG else ()


def hunt(
    judge: RepeatingRunner,
    drawn: SearchStrategy[Case] | None = None,
    *,
    novelty: Novelty | None = None,
    ledger: Sequence[Entry] = (),
    claim: Callable[[Fingerprint], bool] = lambda _: True,
    capability: Capability | None = None,
    **task: object,
) -> tuple[SliceDone, list[AnyMessage]]:
    """Run a slice of the backend "fake": how it ended, and its messages."""
    sent: list[AnyMessage] = []
    options: dict[str, object] = {"backend": "fake", "index": 0, "seed": 1, "examples": 200, **task}
    search = Hunt(
        Slice(**options),  # type: ignore[arg-type]
        judge,
        sent.append,
        novelty=novelty,
        ledger=ledger,
        claim=claim,
        capability=capability,
    )
    return search.run(fake_cases() if drawn is None else drawn), sent


def caught(sent: Iterable[AnyMessage]) -> list[Caught]:
    """The failures that came back."""
    return [message for message in sent if isinstance(message, Caught)]


class FakeJudge(OneByOne):
    """A judge whose kernels fail as `fails` says of the kv lengths.

    Once a fresh worker was asked for, the next case fails only where `comes_back`, whatever its seed.
    """

    def __init__(self, fails: Fails, *, comes_back: Callable[[Case], bool] = lambda _: True) -> None:
        self._fails = fails
        self._comes_back = comes_back
        self._renewed = False
        self.judged: list[Case] = []
        self.confirmed: list[Case] = []

    def verdict(self, case: Case) -> Verdict:
        """Judge without running anything."""
        # What is drawn has seed 0: another one means that a failure is tried again.
        again = self._renewed or case.seed != 0
        self._renewed = False
        (self.confirmed if again else self.judged).append(case)
        return Verdict(observations=self._fails(kv_lens(case)) if not again or self._comes_back(case) else (), rows=1)

    def renew(self) -> None:
        """Take the next case for one that is to come back."""
        self._renewed = True


class Counting(FakeJudge):
    """Fails at these runs of a long case, counted from 1; 0 is each of them."""

    def __init__(self, failure: Observation, *at: int, every: int = 0) -> None:
        super().__init__(lambda _: ())
        self._long = 0
        self._failure, self._at, self._every = failure, at, every

    def verdict(self, case: Case) -> Verdict:
        """Judge without running anything."""
        if max(kv_lens(case)) < 100:
            return Verdict()
        self._long += 1
        fails = self._long in self._at or (self._every and self._long % self._every == 0)
        return Verdict(observations=(self._failure,) if fails else ())


class RejectingJudge(FakeJudge):
    """Supports no case."""

    def __init__(self) -> None:
        super().__init__(lambda _: ())

    def verdict(self, case: Case) -> Verdict:
        return Verdict(unsupported="no decode")


def handed_over(caught: Caught) -> HandedOver:
    """The failure with a script that prints the lengths of its case."""
    script = f"print({kv_lens(caught.case)})"
    return HandedOver(fingerprint=caught.fingerprint, case=caught.case, script=script)


class FakeJobs:
    """Jobs in this process, one slice after the other, on a fake judge of the cases of `strategy`."""

    def __init__(self, judge: RepeatingRunner, count: int = 1, *, strategy: SearchStrategy[Case] | None = None) -> None:
        self.count = count
        self.slices: list[Slice] = []
        self._judge = judge
        self._strategy = fake_cases() if strategy is None else strategy
        self._messages: deque[tuple[int, AnyMessage]] = deque()

    def start(self, job: int, task: Slice) -> None:
        """Run the slice to its end. Its failures have scripts."""
        self.slices.append(task)
        if task.scripted is not None:
            self._messages.append((job, handed_over(task.scripted)))
            self._messages.append((job, SliceDone(tally=Tally(), stopped_early=False, seconds=0.0, unsupported={})))
            return

        def tell(message: AnyMessage) -> None:
            if task.first_only or not isinstance(message, Caught):
                self._messages.append((job, message))
                return
            self._messages.append((job, replace(message, script_follows=True)))
            self._messages.append((job, handed_over(message)))

        hunt = Hunt(task, self._judge, tell)
        drawn = self._strategy.map(lambda case: replace(case, backend=task.backend))
        self._messages.append((job, hunt.run(drawn)))

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        """The next message."""
        return self._messages.popleft() if self._messages else None

    def answer(self, job: int, *, granted: bool) -> None:
        """These jobs run one after the other, and claim nothing."""
        raise AssertionError((job, granted))

    def kill(self, job: int) -> None:
        """These jobs are never stuck."""
        raise AssertionError(job)

    def restart(self, job: int) -> None:
        """Forget what the job had to say."""
        self._messages = deque(received for received in self._messages if received[0] != job)
