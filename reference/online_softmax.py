"""Softmax-weighted sums over keys that arrive in blocks, each read once, in fp64.

The recurrence is that of Milakov and Gimelshein (arXiv:1805.02867): whenever the largest logit grows, what has been
summed is scaled down.
"""

import torch

_FAR = 700.0
"""Distance from the largest logit at which a weight is below 1e-300: farther logits, -inf too, count as this far."""

_LOWEST = torch.finfo(torch.float64).min


class OnlineSoftmax:
    """Rows [..., M] that have seen some keys.

    Weights x_j = exp(logit_j - peak) are relative to the row's largest logit.
    Holds peak, total = sum x, weighted = sum x v and, with `moments`, squares = sum x^2, drop = sum x (peak - logit),
    and powers = sum x^2 [v^2, v].
    """

    def __init__(self, *, moments: bool) -> None:
        self._moments = moments
        self._fresh = True
        self.peak = self.total = self.weighted = torch.empty(0)
        self.squares = self.drop = self.powers = torch.empty(0)

    def add(self, logits: torch.Tensor, value: torch.Tensor) -> None:
        """See more keys: logits [..., M, k], -inf where hidden, and value [..., k, Dv], both fp64."""
        before = self.peak
        peak = logits.amax(dim=-1)
        if not self._fresh:
            peak = torch.maximum(peak, before)
        self.peak = peak
        base = peak.clamp(min=_LOWEST)
        below = logits.sub_(base.unsqueeze(-1))
        x = below.exp()
        sums = [x.sum(dim=-1), x @ value]
        if self._moments:
            x2 = x * x
            sums += [
                x2.sum(dim=-1),
                (x * below.clamp_(min=-_FAR)).sum(dim=-1).neg_(),
                x2 @ torch.cat((value * value, value), dim=-1),
            ]
        if not self._fresh:
            sums = self._rescaled(sums, (base - before).clamp_(max=_FAR))
        self._fresh = False
        self.total, self.weighted = sums[:2]
        if self._moments:
            self.squares, self.drop, self.powers = sums[2:]

    def _rescaled(self, sums: list[torch.Tensor], growth: torch.Tensor) -> list[torch.Tensor]:
        """The new keys' `sums` plus the earlier ones, whose peak has grown by `growth` [..., M]."""
        decay = torch.exp(-growth)
        wide = decay.unsqueeze(-1)
        result = [sums[0] + self.total * decay, sums[1] + self.weighted * wide]
        if self._moments:
            drop = (self.drop + self.total * growth) * decay
            result += [sums[2] + self.squares * decay * decay, sums[3] + drop, sums[4] + self.powers * wide * wide]
        return result

    def finish(self, sinks: torch.Tensor | None, scale: float) -> list[torch.Tensor]:
        """The answer's columns: out [..., M, Dv], times `scale`, and lse [..., M, 1].

        With moments, then power and spread [..., M, Dv], and (concentration, gap, p_peak, peak) [..., M, 4], all as
        `Moments` defines them. sinks [..., M] are natural logits. Rows that saw nothing give out = 0, and lse = -inf or
        the sink.
        """
        lse = self.peak + self.total.log()
        peak = self.peak
        if sinks is not None:
            lse = torch.logaddexp(lse, sinks)
            peak = torch.maximum(peak, sinks)
        p_peak = torch.exp(self.peak - lse.clamp(min=_LOWEST))
        wide = p_peak.unsqueeze(-1)
        out = self.weighted * (wide * scale)
        if not self._moments:
            return [out, lse.unsqueeze(-1)]
        power, cross = (self.powers * (wide * wide)).chunk(2, dim=-1)
        power = power * (scale * scale)
        concentration = self.squares * p_peak * p_peak
        spread = power + out * (out * concentration.unsqueeze(-1) - cross * (2 * scale))
        gap = self.drop / self.total.clamp(min=1.0)
        narrow = torch.stack((concentration, gap, p_peak, peak.masked_fill(peak == -torch.inf, 0.0)), dim=-1)
        return [out, lse.unsqueeze(-1), power, spread.clamp_(min=0), narrow]
