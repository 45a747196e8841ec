"""One failing row by itself: its keys, its error, and the judge's bounds around alternative answers."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch

from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.explain.paged_call import PagedCall
from attnfuzz.harness.judge.lse_bound import lse_bound
from attnfuzz.reference.attention import attend
from attnfuzz.reference.noise import ROUNDOFF
from attnfuzz.reference.problem import Answer, Moments, Problem
from attnfuzz.reference.row import row_weights


@dataclass(frozen=True)
class Alternative:
    """Another answer for the row: `out` [Dv] and `lse` in fp64, and the bounds of a correct kernel's error.

    `read` are the keys of the row's request that it is computed from, in parts, if it differs in nothing else.
    """

    out: torch.Tensor
    lse: float
    out_bound: torch.Tensor
    lse_bound: float
    read: tuple[range, ...] | None = None


@dataclass(frozen=True)
class WrongRow:
    """One row of an output that failed.

    `out` [Dv] and `lse` (in natural units, None if there is none) are the kernel's results for packed query `token` and
    query head `head` of `problem`; `answer` and `budget` judged them. `call` is the launch that produced the row, None
    if unknown or not a single one; `place` is the row's place in its output.
    """

    problem: Problem
    answer: Answer
    budget: ErrorBudget
    token: int
    head: int
    out: torch.Tensor
    lse: float | None
    call: PagedCall | None = None
    place: int = -1

    @cached_property
    def request(self) -> int:
        """The request that the row belongs to."""
        return bisect_right(list(accumulate(self.problem.q_lens)), self.token)

    @property
    def first_token(self) -> int:
        """The first token of the row's request, packed."""
        return sum(self.problem.q_lens[: self.request])

    @property
    def token_in_request(self) -> int:
        """The index of the row's token in its request."""
        return self.token - self.first_token

    @property
    def q_len(self) -> int:
        """The number of queries of the row's request."""
        return self.problem.q_lens[self.request]

    @property
    def kv_len(self) -> int:
        """The number of keys of the row's request."""
        return self.problem.kv_lens[self.request]

    @property
    def window_start(self) -> int:
        """The first key of the row's window, which may be before the request's first key."""
        return self.own - self.problem.window_left

    def seen_by(self, token: int) -> range:
        """Return the keys that another token of the row's request sees."""
        return replace(self, token=self.first_token + token).seen

    @cached_property
    def own(self) -> int:
        """The last key that the row may see by the causal limit, as an index into its request's keys."""
        problem, request = self.problem, self.request
        return problem.kv_lens[request] - sum(problem.q_lens[: request + 1]) + self.token

    @cached_property
    def seen(self) -> range:
        """The keys that the row sees, as indices into its request's keys. Under a mask, those that it may see."""
        last = self.own + 1 if self.problem.causal else self.problem.kv_lens[self.request]
        first = self.own - self.problem.window_left if self.problem.window_left >= 0 else 0
        return range(max(first, 0), max(last, first, 0))

    @property
    def mask(self) -> torch.Tensor:
        """The row of its request's mask, bool [kv_len]. There must be one."""
        assert self.problem.masks is not None
        return self.problem.masks[self.request][self.token_in_request]

    @cached_property
    def kv_head(self) -> int:
        """The KV head that the row's query head reads."""
        return self.head // self.problem.group

    @cached_property
    def error(self) -> torch.Tensor:
        """Output minus right answer, fp64 [Dv]."""
        return self.out.to(torch.float64) - self.truth.out

    @cached_property
    def truth(self) -> Alternative:
        """The right answer."""
        answer, one = self.answer, (slice(self.token, self.token + 1), slice(self.head, self.head + 1))
        assert answer.moments is not None
        moments = Moments(**{name: tensor[one] for name, tensor in vars(answer.moments).items()})
        own = Answer(answer.out[one], answer.lse[one], answer.visible[one[0]], moments)
        return self._allowed(self.alone(self.seen), own)

    @cached_property
    def weights_and_values(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Softmax weights [k] and values [k, Dv] of the keys in `seen`, in fp64. Hidden keys have a weight of 0."""
        weights, values = row_weights(self.problem, self.token, self.head)
        if self.problem.masks is None:
            return weights, values
        at = self.mask[self.seen.start : self.seen.stop].nonzero().flatten().to(weights.device)
        spread = weights.new_zeros(len(self.seen)), values.new_zeros(len(self.seen), values.shape[1])
        return spread[0].index_copy_(0, at, weights), spread[1].index_copy_(0, at, values)

    def alone(self, keys: range, *, request: int | None = None, kv_head: int | None = None) -> Problem:
        """Return the problem of this row alone, over `keys` of its own request and KV head, or of the given ones.

        All are visible except those that the row's mask hides.
        """
        problem = self.problem
        start = sum(problem.kv_lens[: self.request if request is None else request])
        rows = slice(start + keys.start, start + keys.stop)
        group = slice(kv_head, kv_head + 1) if kv_head is not None else slice(self.kv_head, self.kv_head + 1)
        return replace(
            problem,
            query=problem.query[self.token : self.token + 1, self.head : self.head + 1],
            key=problem.key[rows, group].to(problem.query.device),
            value=problem.value[rows, group].to(problem.query.device),
            q_lens=(1,),
            kv_lens=(len(keys),),
            window_left=-1,
            sinks=None if problem.sinks is None else problem.sinks[self.head : self.head + 1],
            masks=None if problem.masks is None else (self.mask[keys.start : keys.stop].unsqueeze(0),),
        )

    def under(self, mask: torch.Tensor) -> Problem:
        """Return the problem of this row alone, under another mask [kv_len]."""
        return replace(self.alone(self.seen), masks=(mask[self.seen.start : self.seen.stop].unsqueeze(0),))

    def with_keys(self, parts: Sequence[range]) -> Problem:
        """Return the problem of this row alone, over the keys of its request in `parts`, repeated if these overlap."""
        every = self.alone(range(self.problem.kv_lens[self.request]))
        key, value = (
            torch.cat([tensor[:0], *(tensor[part.start : part.stop] for part in parts)])
            for tensor in (every.key, every.value)
        )
        masks = None
        if every.masks is not None:
            own = every.masks[0]
            masks = (torch.cat([own[:, :0], *(own[:, part.start : part.stop] for part in parts)], dim=1),)
        return replace(every, key=key, value=value, kv_lens=(len(key),), masks=masks)

    def reading(self, *parts: range) -> Alternative:
        """Return the answer over the keys of the row's request in `parts`, repeated if these overlap."""
        problem = self.alone(parts[0]) if len(parts) == 1 else self.with_keys(parts)
        return replace(self.alternative(problem), read=parts)

    def alternative(self, problem: Problem) -> Alternative:
        """Return the answer to a problem of one row."""
        return self._allowed(problem, attend(problem, moments=True))

    def with_out(self, out: torch.Tensor) -> Alternative:
        """Return the right answer with another output [Dv], whose rounding may be larger."""
        rounding = ROUNDOFF[self.out.dtype] * out.abs()
        return replace(self.truth, out=out, out_bound=self.truth.out_bound + rounding)

    def _allowed(self, problem: Problem, answer: Answer) -> Alternative:
        """Return the judge's bounds around the only row of `answer`, at one row's share of the output's alpha."""
        share = answer.out.numel() / max(self.answer.out.numel(), 1)
        budget = replace(self.budget, problem=problem, answer=answer, alpha=self.budget.alpha * share)
        out_bound, bound = element_bound(budget)[0, 0], lse_bound(budget)[0, 0].item()
        return Alternative(answer.out[0, 0], answer.lse[0, 0].item(), out_bound, bound)


def without(keys: range, cut: range) -> tuple[range, ...]:
    """Remove `cut`, a part of `keys`, and return the nonempty parts that are left."""
    parts = range(keys.start, cut.start), range(cut.stop, keys.stop)
    return tuple(part for part in parts if len(part))
