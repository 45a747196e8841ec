"""Drawing sequences of steps, before padding and graphs: unrelated ones, or the life of a batch over several rounds."""

import random
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode, Request, Step
from attnfuzz.strategies.batch import Lengths, Setting, draw_batch, q_options
from attnfuzz.strategies.choices import Choice, choice, integer, odds
from attnfuzz.strategies.coverage import ATTENTION_SPACE
from attnfuzz.strategies.scope import MOST_ROUNDS

_MOST_STEPS = 5
_MOST_PROMPTS = 3
_PREFILLS = (Mode.EXTEND, Mode.CHUNKED_PREFILL)
_DRAFT_EXTENDS = (Mode.DRAFT_EXTEND, Mode.DRAFT_EXTEND_V2)
_VERIFIES = (Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND)
_OF_DRAFT_MODELS = (Mode.DRAFT_DECODE, *_DRAFT_EXTENDS)
# Seeds of the orders of requests; 0 keeps the order of their sequences.
_ORDERS = integer(0, 255)
# Whether a step repeats the mode and the lengths of the previous step.
_SAME_LENGTHS = odds(5, 1)
# A batch's changes between two rounds: (the number of places by which it is rotated, whether a request leaves, and
# whether another one takes its place).
_CHANGES = choice(
    ((0, False, False), (0, False, False), (1, False, False), (0, True, False), (1, True, False), (0, False, True))
)
# Whether the requests of this step and all later ones are new.
_OTHER_REQUESTS = odds(7, 1)
# Whether a round with drafts ends with the draft decodes for the next round.
_DRAFTED = odds(1, 1)
_GOES_ON = odds(1, 1)
# Whether a draft model decodes after a verify of unrelated steps.
_PROPOSES = odds(3, 1)

_Draft = tuple[Mode, tuple[Lengths, ...], int]
"""(mode, lengths, seed of the requests' order) of one step."""


def draw_single_step(draw: DrawFn, setting: Setting) -> tuple[Step, ...]:
    """Draw one step of any mode."""
    mode = draw(_modes(setting.can, setting.can.modes).under(setting.lean))
    batch = draw_batch(draw, setting, mode)
    return (_step(setting, mode, _ordered(len(batch), draw(_ORDERS)), batch),)


def draw_unrelated_steps(draw: DrawFn, setting: Setting, modes: tuple[Mode, ...]) -> tuple[Step, ...]:
    """Draw a few steps with unrelated lengths, most of them of one of `modes`, since a graph needs several replays.

    Steps of different batch sizes attend to different subsets of the sequences, in different orders. Occasionally a
    step has the lengths of the previous one on other sequences, as if a request's place were handed on to one of equal
    length, or all requests are new from a step on.
    """
    mode = draw(_modes(setting.can, modes).under(setting.lean))
    weighted = (mode,) * 2 * len(setting.can.modes) + setting.can.modes
    drafts = draw(_several(setting, weighted))
    for index in range(1, len(drafts)):
        if draw(_SAME_LENGTHS):
            drafts[index] = (*drafts[index - 1][:2], drafts[index][2])
    if Mode.DRAFT_DECODE in setting.can.modes:
        drafts = [each for draft in drafts for each in _with_proposal(draw, setting, draft)]
    ends = [index for index in range(1, len(drafts)) if draw(_OTHER_REQUESTS)]
    first, steps = 0, list[Step]()
    for begin, end in pairwise((0, *ends, len(drafts))):
        slots = max(len(batch) for _, batch, _ in drafts[begin:end])
        for mode, batch, order in drafts[begin:end]:
            steps.append(_step(setting, mode, [first + slot for slot in _ordered(slots, order)], batch))
        first += slots
    return tuple(steps)


def _with_proposal(draw: DrawFn, setting: Setting, step: _Draft) -> Iterator[_Draft]:
    """Yield the step, and after some verifies the draft decodes of its requests, which may have rejected drafts."""
    yield step
    mode, batch, order = step
    if mode in _VERIFIES and draw(_PROPOSES):
        new = setting.tokens_per_request(Mode.DRAFT_DECODE)
        accepted = random.Random(draw(_ORDERS))
        lengths = tuple((new, max(kv - q, 0) + accepted.randint(1, q) + new) for q, kv in batch)
        yield Mode.DRAFT_DECODE, lengths, order


@lru_cache(1024)
def _several(setting: Setting, modes: tuple[Mode, ...]) -> SearchStrategy[list[_Draft]]:
    """Return a strategy of 1 to `_MOST_STEPS` steps."""
    return st.lists(_drafts(setting, modes), min_size=1, max_size=_MOST_STEPS)


@st.composite
def _drafts(draw: DrawFn, setting: Setting, modes: tuple[Mode, ...]) -> _Draft:
    """Draw one step."""
    mode = draw(_one_of(modes))
    return mode, draw_batch(draw, setting, mode), draw(_ORDERS)


def draw_life(draw: DrawFn, setting: Setting) -> tuple[Step, ...]:
    """Draw a batch's life: a prefill, then rounds of decode, of verify and draft extend, or of further prompts.

    KV grows by the accepted tokens of each round; requests leave the batch, and its order changes. Every backend
    supports such a life, because no request has fewer keys than queries.
    """
    prefixes = setting.prefix_lengths()
    most = min(_MOST_PROMPTS, setting.scope.of_batch(setting.stride).requests)
    # All prompts fit into one step.
    longest = min(setting.scope.q_len, setting.scope.rows // most)
    prompts = draw(_prompts(prefixes, longest, most))
    batch = _Life(setting, [prefix for _, prefix in prompts])
    starts = tuple(mode for mode in setting.can.modes if mode in _PREFILLS)
    if starts:
        batch.prefill(draw(_one_of(starts)), [new for new, _ in prompts])
    for mode in draw(_rounds(_openings(setting.can))):
        rotation, leaves, replaced = draw(_CHANGES)
        batch.reorder(rotation, leaves=leaves)
        if replaced:
            batch.replace(draw(prefixes))
        _draw_round(draw, batch, mode, longest)
    return tuple(batch.steps)


@cache
def _prompts(prefix: SearchStrategy[int], most_new: int, most: int) -> SearchStrategy[list[Lengths]]:
    """Return a strategy of (new tokens, cached tokens) of 1 to `most` requests."""
    return st.lists(st.tuples(_new_tokens(most_new), prefix), min_size=1, max_size=most)


@cache
def _new_tokens(most: int) -> SearchStrategy[int]:
    """Return a strategy of a request's number of new tokens, at least 1."""
    return choice(tuple(length for length in q_options(most) if length))


@cache
def _one_of(modes: tuple[Mode, ...]) -> SearchStrategy[Mode]:
    return choice(modes)


@cache
def _modes(can: Capability, modes: tuple[Mode, ...]) -> Choice[Mode]:
    """Return a choice of `modes`. Each shows itself and all features that are possible with it."""
    return Choice(modes, lambda mode: ATTENTION_SPACE.beside(f"mode={mode}", can))


@cache
def _rounds(modes: tuple[Mode, ...]) -> SearchStrategy[list[Mode]]:
    """Return a strategy of the first modes of the rounds."""
    return st.lists(choice(modes), min_size=1, max_size=MOST_ROUNDS)


def _openings(can: Capability) -> tuple[Mode, ...]:
    """Return the possible first modes of a round: a draft model's only if the backend has no other mode."""
    return tuple(mode for mode in can.modes if mode not in _OF_DRAFT_MODELS) or can.modes


def _draw_round(draw: DrawFn, batch: "_Life", mode: Mode, longest: int) -> None:
    size, setting = len(batch.alive), batch.setting
    if mode is Mode.DECODE:
        batch.speculate(Mode.DECODE, [1] * size)
    elif mode in _PREFILLS:
        batch.prefill(mode, [draw(_new_tokens(longest)) for _ in range(size)])
    elif mode is Mode.DRAFT_DECODE:
        batch.draft([draw(integer(1, setting.stride)) for _ in range(size)])
    else:
        drafting = Mode.DRAFT_DECODE in setting.can.modes
        followers = tuple(follower for follower in setting.can.modes if follower in _DRAFT_EXTENDS)
        # In some servers, the draft model decodes right after the verify, and has to skip the rejected drafts.
        extends = bool(followers) and not (drafting and draw(_GOES_ON))
        follower = draw(_one_of(followers)) if extends else None
        batch.speculate(mode, [draw(integer(1, setting.stride)) for _ in range(size)], follower)
        if drafting and draw(_DRAFTED):
            batch.draft()


class _Life:
    """The growing KV lengths of a batch, and its steps. `alive` has the sequences in the batch's order."""

    def __init__(self, setting: Setting, lengths: list[int]) -> None:
        self.setting = setting
        self.lengths = lengths
        self.alive = list(range(len(lengths)))
        self.steps: list[Step] = []

    def reorder(self, rotation: int, *, leaves: bool) -> None:
        """Rotate the batch, and drop its last request if it had a step and others stay."""
        self.alive = self.alive[rotation:] + self.alive[:rotation]
        if leaves and len(self.alive) > 1 and self.steps:
            self.alive.pop()

    def replace(self, length: int) -> None:
        """Replace the last request, if it had a step, by one of this KV length, as after a prefill elsewhere."""
        if self.steps:
            self.alive[-1] = len(self.lengths)
            self.lengths.append(length)

    def prefill(self, mode: Mode, new: Sequence[int]) -> None:
        """Add a step in which the requests get `new` tokens."""
        self._grow(new)
        self._add(mode, new)

    def speculate(self, mode: Mode, accepted: Sequence[int], follower: Mode | None = None) -> None:
        """Add a step over all draft tokens, of which `accepted` stay, then the draft model's `follower`, if any.

        The first version of draft extend runs over the accepted tokens, the second over all draft tokens.
        """
        drafts = [self.setting.tokens_per_request(mode)] * len(self.alive)
        self._grow(drafts)
        self._add(mode, drafts)
        if follower is Mode.DRAFT_EXTEND_V2:
            self._add(follower, drafts)
        self._grow([kept - draft for kept, draft in zip(accepted, drafts, strict=True)])
        if follower is Mode.DRAFT_EXTEND:
            self._add(follower, accepted)

    def draft(self, accepted: Sequence[int] = ()) -> None:
        """Add the decodes of the draft model, whose tokens are not accepted yet; before, `accepted` ones of no step."""
        self._grow(accepted or [0] * len(self.alive))
        drafts = [self.setting.tokens_per_request(Mode.DRAFT_DECODE)] * len(self.alive)
        self._grow(drafts)
        self._add(Mode.DRAFT_DECODE, drafts)
        self._grow([-draft for draft in drafts])

    def _grow(self, new: Sequence[int]) -> None:
        for slot, count in zip(self.alive, new, strict=True):
            self.lengths[slot] += count

    def _add(self, mode: Mode, q_lens: Sequence[int]) -> None:
        batch = tuple((q_len, self.lengths[slot]) for slot, q_len in zip(self.alive, q_lens, strict=True))
        self.steps.append(_step(self.setting, mode, self.alive, batch))


def _ordered(slots: int, order: int) -> list[int]:
    """Return the slots 0 to `slots - 1`, shuffled by the seed `order`; 0 keeps them ascending."""
    result = list(range(slots))
    if order:
        random.Random(order).shuffle(result)
    return result


def _step(setting: Setting, mode: Mode, slots: Sequence[int], batch: Sequence[Lengths]) -> Step:
    """Return an eager step without padding; surplus `slots` are ignored."""
    requests = tuple(Request(slot, *lengths) for slot, lengths in zip(slots, batch, strict=False))
    return Step(
        mode=mode,
        requests=requests,
        padded_tokens=sum(request.q_len for request in requests),
        tokens_per_request=setting.tokens_per_request(mode),
    )
