"""Hypotheses about factors: of the output, of the logits, and of the weights that sinks and the soft cap change."""

from collections.abc import Iterator
from dataclasses import replace
from math import log, sqrt

import torch

from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow

_STEPS = 4
"""Gauss-Newton steps to the factor of the logits."""

_FACTORS = 64
"""What a fitted factor counts as: the resolution at which it is told apart."""


def zero(row: WrongRow) -> Iterator[Alternative]:
    """Nothing was added up."""
    truth = row.truth
    yield replace(truth, words="as if no key were seen: the row is all zero", out=torch.zeros_like(truth.out))


def output_factor(row: WrongRow) -> Iterator[Alternative]:
    """The output is multiplied by a factor; the LSE is right."""
    truth, scale = row.truth, row.problem.bmm2_scale
    weighted = truth.out / truth.out_bound**2
    size = (weighted @ truth.out).item()
    if not size:
        return
    named = {
        2.0: "as if the output were doubled",
        0.5: "as if the output were halved",
        -1.0: "as if the sign of the output were wrong",
    }
    if scale != 1:
        named[scale] = f"as if bmm2_scale ({scale:.4g}) were applied twice"
        named[1 / scale] = f"as if bmm2_scale ({scale:.4g}) were not applied"
    for factor, words in named.items():
        yield _multiplied(truth, factor, words)
    factor = (weighted @ row.out.to(torch.float64)).item() / size
    if factor:
        words = f"as if the output were multiplied by {factor:.5g}"
        yield replace(_multiplied(truth, factor, words), tried=_FACTORS)


def _multiplied(truth: Alternative, factor: float, words: str) -> Alternative:
    bound = truth.out_bound * max(abs(factor), 2.0**-24)
    return replace(truth, words=words, out=truth.out * factor, out_bound=bound)


def logit_factor(row: WrongRow) -> Iterator[Alternative]:
    """The logits are multiplied by a factor: a named one, or the one that fits best."""
    alone = row.alone(row.seen)
    if not len(row.seen) or alone.soft_cap:
        return
    scale, dim = alone.bmm1_scale, alone.query.shape[2]
    named = {
        0.0: "as if all logits were 0",
        log(2): "as if the logits were multiplied by ln 2: exp2 without the change of base",
        1 / log(2): "as if the logits were multiplied by 1 / ln 2: the change of base twice",
        sqrt(dim): "as if 1 / sqrt(head_dim_qk) were not applied",
        1 / sqrt(dim): "as if 1 / sqrt(head_dim_qk) were applied twice",
        scale: f"as if bmm1_scale ({scale:.4g}) were applied twice",
        1 / scale: f"as if bmm1_scale ({scale:.4g}) were not applied",
    }
    for factor, words in named.items():
        if factor != 1:
            yield row.alternative(words, replace(alone, bmm1_scale=scale * factor))
    fitted = _fitted_factor(row)
    if fitted is not None:
        words = f"as if the logits were multiplied by {fitted:.5g}"
        yield row.alternative(words, replace(alone, bmm1_scale=scale * fitted), tried=_FACTORS)


def _fitted_factor(row: WrongRow) -> float | None:
    """The factor f of the logits l for which out and LSE are closest to the row's, each in units of its bound.

    d out / d f = sum_j p_j (l_j - lbar) (v_j - o) and d lse / d f = lbar, with lbar = sum_j p_j l_j.
    """
    weights, values = row.weights_and_values
    logits = weights.clamp(min=1e-300).log() + row.truth.lse
    sink = row.problem.sinks[row.head].item() if row.problem.sinks is not None else -torch.inf
    seen, factor = row.out.to(torch.float64), 1.0
    for _ in range(_STEPS):
        powers = logits * factor
        lse = torch.logaddexp(torch.logsumexp(powers, 0), powers.new_tensor(sink))
        p = torch.exp(powers - lse)
        mean, out = p @ logits, p @ values
        slope = ((p * logits) @ values - mean * out) / row.truth.out_bound
        error = (seen - out) / row.truth.out_bound
        if row.lse is not None:
            slope = torch.cat((slope, mean.view(1) / row.truth.lse_bound))
            error = torch.cat((error, (row.lse - lse).view(1) / row.truth.lse_bound))
        size = (slope @ slope).item()
        if not size:
            return None
        factor += (slope @ error).item() / size
        if not 0.1 < factor < 10:
            return None
    return factor


def extra_terms(row: WrongRow) -> Iterator[Alternative]:
    """The sink or the soft cap left out, or the sink counted twice."""
    alone, problem = row.alone(row.seen), row.problem
    if problem.soft_cap:
        yield row.alternative("as if the soft cap were not applied", replace(alone, soft_cap=0.0))
    if alone.sinks is not None and problem.sinks is not None:
        yield row.alternative("as if the sink were left out", replace(alone, sinks=None))
        yield row.alternative("as if the sink were counted twice", replace(alone, sinks=alone.sinks + log(2)))
        for head in range(problem.query.shape[1]):
            if head != row.head:
                other = replace(alone, sinks=problem.sinks[head : head + 1])
                yield row.alternative(f"as if it had the sink of head {head}", other)
