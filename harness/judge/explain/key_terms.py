"""The contribution of each key, or block of keys, to a row, to find those whose absence would explain its error.

With weights p, values v, the answer o and the row's output y, let key j be counted 1 + c_j times: c_j = -1 if it is
missing. That explains the row if

    (o + sum_j c_j p_j v_j) / (1 + sum_j c_j p_j) = y,  which is  sum_j c_j p_j (v_j - y) = y - o,

which is linear in the keys. So a few products score all keys at once, and sums of keys score blocks and runs. Squares
are expanded, |a - b|^2 = |a|^2 - 2 a b + |b|^2, which is accurate enough to choose candidates. These are then computed
exactly.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from attnfuzz.harness.judge.explain.wrong_row import WrongRow

_CHUNK = 4096
"""Number of keys whose terms are computed at once, to fit a CPU's cache."""


@dataclass(frozen=True)
class KeyTerms:
    """The terms of aligned blocks of `size` keys, starting with block `first` of the request.

    `terms` [m, Dv] are p (v - y), `target` [Dv] is y - o and `output` [Dv] y, all over the T1 bound; `mass` [m] is each
    block's weight.
    """

    size: int
    first: int
    terms: torch.Tensor
    mass: torch.Tensor
    target: torch.Tensor
    output: torch.Tensor
    seen: range

    @cached_property
    def square(self) -> torch.Tensor:
        """|terms|^2, [m]."""
        square: torch.Tensor = torch.linalg.vecdot(self.terms, self.terms)
        return square

    @cached_property
    def dot(self) -> torch.Tensor:
        """The products of the terms with `target`, [m]."""
        return self.terms @ self.target

    @cached_property
    def target_square(self) -> torch.Tensor:
        """|target|^2."""
        return self.target @ self.target

    def keys(self, block: int) -> range:
        """Return the keys of a block that the row sees."""
        begin = (self.first + block) * self.size
        return range(max(begin, self.seen.start), min(begin + self.size, self.seen.stop))

    def coarser(self, factor: int) -> "KeyTerms":
        """Merge blocks into ones `factor` times larger."""
        before, after = self.first % factor, -(self.first + len(self.mass)) % factor
        terms, mass = (
            torch.cat((tensor.new_zeros(before, *tensor.shape[1:]), tensor, tensor.new_zeros(after, *tensor.shape[1:])))
            if before or after
            else tensor
            for tensor in (self.terms, self.mass)
        )
        return KeyTerms(
            self.size * factor,
            self.first // factor,
            terms.unflatten(0, (-1, factor)).sum(dim=1),
            mass.unflatten(0, (-1, factor)).sum(dim=1),
            self.target,
            self.output,
            self.seen,
        )

    def left(self, times: int) -> torch.Tensor:
        """Return the root mean square error that remains if a block is counted `times` more: [m]."""
        return self._left(self.target_square - 2 * times * self.dot + self.square, times * self.mass)

    def left_swapped(self, leads: torch.Tensor, times: int) -> torch.Tensor:
        """Return the error that remains if a lead is counted `times` more, and another block that much less.

        The shape is [leads, m].
        """
        targets = self.target - times * self.terms[leads]
        squared = torch.linalg.vecdot(targets, targets).unsqueeze(-1) + 2 * times * (targets @ self.terms.T)
        return self._left(squared + self.square, times * (self.mass[leads].unsqueeze(-1) - self.mass))

    def left_without_values(self) -> torch.Tensor:
        """Return the error that remains if the values of a block are missing but its weight is counted: [m]."""
        gone = self.square + 2 * self.mass * (self.terms @ self.output) + self.mass**2 * (self.output @ self.output)
        squared = self.target_square + 2 * (self.dot + self.mass * (self.output @ self.target)) + gone
        return self._left(squared, torch.zeros_like(self.mass))

    def left_without_ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the errors that remain without the first n + 1 blocks, or all blocks from n + 1 on: both [m]."""
        first, running = torch.empty_like(self.mass), torch.zeros_like(self.target)
        for begin in range(0, len(first), _CHUNK):
            sums = self.terms[begin : begin + _CHUNK].cumsum(0).add_(running)
            running = sums[-1].clone()
            first[begin : begin + _CHUNK] = torch.linalg.vecdot(sums, sums)
        mass = self.mass.cumsum(0)
        beyond = self.target + running
        last = beyond @ beyond - 2 * (self.terms @ beyond).cumsum(0) + first
        first += self.target_square + 2 * self.dot.cumsum(0)
        return self._left(first, -mass), self._left(last, mass - mass[-1])

    def _left(self, squared: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Return the root mean square from the squared remainder, and the weight added to a sum of 1."""
        return squared.clamp(min=0).div_(len(self.target)).sqrt_() / (1 + added).clamp(min=1e-15)


def key_terms(row: WrongRow) -> KeyTerms:
    """Return the terms of the single keys that the row sees."""
    weights, values = row.weights_and_values
    seen, scale = row.out.to(torch.float64), row.truth.out_bound
    terms = torch.empty_like(values)
    for begin in range(0, len(weights), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        torch.mul((values[part] - seen).div_(scale), weights[part].unsqueeze(-1), out=terms[part])
    return KeyTerms(1, row.seen.start, terms, weights, row.error / scale, seen / scale, row.seen)
