"""Claims about factors: of the output, of the logits, of sinks, and of the soft cap."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import floor, log, log10, sqrt

import torch

from attnfuzz.harness.judge.explain.claim import POSITIONS, RULE, SCALED, Claim
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake
from attnfuzz.reference.problem import Problem

_STEPS = 4
"""Number of Gauss-Newton steps towards the factor of the logits."""

_FACTORS = 64
"""Number of candidates that a fitted factor counts as, by its resolution."""

Factor = Callable[[Problem], float]
"""Returns a factor that follows from the row's problem."""


def no_keys(row: WrongRow) -> Iterator[Claim]:
    """Yield the claim that no key was added up."""
    del row

    def zero(each: WrongRow) -> Alternative:
        return replace(each.truth, out=torch.zeros_like(each.truth.out), lse=-torch.inf)

    yield Claim(Mistake.NO_KEYS, "as if no key were seen: the row is all zero", zero, POSITIONS)


def output_factors(row: WrongRow) -> Iterator[Claim]:
    """Yield claims that the output is multiplied by a factor; the LSE is right."""
    scale = row.problem.bmm2_scale
    named: list[tuple[str, Factor]] = [
        ("as if the sign of the output were wrong", lambda _: -1.0),
        ("as if the output were doubled", lambda _: 2.0),
        ("as if the output were halved", lambda _: 0.5),
    ]
    if scale != 1:
        named += [
            (f"as if the scale of V ({scale:.4g}) were applied twice", lambda problem: problem.bmm2_scale),
        ]
    if scale not in (0, 1):
        named.append((f"as if the scale of V ({scale:.4g}) were not applied", lambda problem: 1 / problem.bmm2_scale))
    for words, factor in named:
        yield Claim(Mistake.OUTPUT_SCALE, words, _output_times(factor), SCALED)
    weighted = row.truth.out / row.truth.out_bound**2
    size = (weighted @ row.truth.out).item()
    fitted = (weighted @ row.out.to(torch.float64)).item() / size if size else 0.0
    if fitted:
        words = f"as if the output were multiplied by {_shown(fitted)}"
        yield Claim(Mistake.OUTPUT_SCALE, words, _output_times(lambda _: fitted), RULE, tried=_FACTORS)


def _shown(factor: float) -> str:
    """Format a factor with enough digits to differ from 1."""
    away = abs(factor - 1)
    digits = 5 if away >= 1e-3 or not away else 2 - floor(log10(away))
    return f"{factor:.{digits}g}"


def _output_times(factor: Factor) -> Callable[[WrongRow], Alternative]:
    def answer(row: WrongRow) -> Alternative:
        truth, by = row.truth, factor(row.problem)
        return replace(truth, out=truth.out * by, out_bound=truth.out_bound * max(abs(by), 2.0**-24))

    return answer


def logit_factors(row: WrongRow) -> Iterator[Claim]:
    """Yield claims that the logits are multiplied by a factor: a named one, or the one that fits best."""
    if not len(row.seen):
        return
    scale = row.problem.bmm1_scale
    named: list[tuple[str, Factor]] = [
        ("as if all logits were 0", lambda _: 0.0),
        ("as if the logits were multiplied by ln 2: exp2 without the change of base", lambda _: log(2)),
        ("as if the logits were multiplied by 1 / ln 2: the change of base twice", lambda _: 1 / log(2)),
        ("as if 1 / sqrt(head_dim_qk) were not applied", lambda problem: sqrt(problem.query.shape[2])),
        ("as if 1 / sqrt(head_dim_qk) were applied twice", lambda problem: 1 / sqrt(problem.query.shape[2])),
        (f"as if the scale of the logits ({scale:.4g}) were applied twice", lambda problem: problem.bmm1_scale),
        ("as if the logits had the other sign", lambda _: -1.0),
    ]
    if scale:
        named.append(
            (f"as if the scale of the logits ({scale:.4g}) were not applied", lambda problem: 1 / problem.bmm1_scale)
        )
    for words, factor in named:
        yield Claim(Mistake.LOGIT_SCALE, words, _logits_times(factor), SCALED)
    for words, instead in _CONSTANT[: 2 if row.problem.query.shape[2] == row.problem.value.shape[2] else None]:
        yield Claim(Mistake.LOGIT_SCALE, f"as if the factor of the logits were {words}", _with_scale(instead), SCALED)
    fitted = None if row.problem.soft_cap else _fitted_factor(row)
    if fitted is not None:
        words = f"as if the logits were multiplied by {_shown(fitted)}"
        yield Claim(Mistake.LOGIT_SCALE, words, _logits_times(lambda _: fitted), RULE, tried=_FACTORS)


_CONSTANT: tuple[tuple[str, Factor], ...] = (
    ("always 1 / sqrt(head_dim_qk), whatever is passed", lambda problem: problem.query.shape[2] ** -0.5),
    ("1 / head_dim_qk, whatever is passed", lambda problem: 1 / problem.query.shape[2]),
    ("1 / sqrt(head_dim_vo), whatever is passed", lambda problem: problem.value.shape[2] ** -0.5),
)
"""Factors of the logits in a kernel that ignores the one that it is given."""


def _with_scale(instead: Factor) -> Callable[[WrongRow], Alternative]:
    def answer(row: WrongRow) -> Alternative:
        alone = row.alone(row.seen)
        return row.alternative(replace(alone, bmm1_scale=instead(alone)))

    return answer


def _logits_times(factor: Factor) -> Callable[[WrongRow], Alternative]:
    def answer(row: WrongRow) -> Alternative:
        alone = row.alone(row.seen)
        return row.alternative(replace(alone, bmm1_scale=alone.bmm1_scale * factor(alone)))

    return answer


def _fitted_factor(row: WrongRow) -> float | None:
    """Return the factor f of the logits l for which out and LSE are closest to the row's, in units of their bounds.

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


def soft_cap(row: WrongRow) -> Iterator[Claim]:
    """Yield claims that the soft cap was not applied, or before the factor of the logits."""
    if row.problem.soft_cap:
        # With the factor f, f * cap * tanh(x / cap) is the cap f * cap of the logits f * x.
        yield Claim(
            Mistake.SOFT_CAP,
            "as if the soft cap were applied before the factor of the logits",
            lambda each: each.alternative(
                replace(each.alone(each.seen), soft_cap=each.problem.soft_cap * each.problem.bmm1_scale)
            ),
            SCALED,
        )
        yield Claim(
            Mistake.SOFT_CAP,
            "as if the soft cap were not applied",
            lambda each: each.alternative(replace(each.alone(each.seen), soft_cap=0.0)),
        )


def sinks(row: WrongRow) -> Iterator[Claim]:
    """Yield claims that the sink was left out, counted twice, scaled, or another head's."""
    if row.problem.sinks is None:
        return
    yield Claim(Mistake.SINK, "as if the sink were ignored", _with_sink(lambda _, __: None))
    yield Claim(Mistake.SINK, "as if the sink were counted twice", _with_sink(lambda own, _: own + log(2)))
    words = "as if the sink were multiplied by the scale of the logits"
    scaled = _with_sink(lambda own, each: own * each.problem.bmm1_scale)
    yield Claim(Mistake.SINK_SCALED, words, scaled, SCALED)
    if row.problem.group > 1:
        words = "as if it had the sink of the first query head of its group"
        yield Claim(Mistake.SINK_OF_ANOTHER_HEAD, words, _with_sink(_first_of_group))
    for head in range(row.problem.query.shape[1]):
        if head != row.head:
            words = f"as if it had the sink of head {head}"
            yield Claim(Mistake.SINK_OF_ANOTHER_HEAD, words, _with_sink(_of_head(head)))


Sink = Callable[[torch.Tensor, WrongRow], torch.Tensor | None]


def _with_sink(change: Sink) -> Callable[[WrongRow], Alternative]:
    def answer(row: WrongRow) -> Alternative:
        alone = row.alone(row.seen)
        assert alone.sinks is not None
        return row.alternative(replace(alone, sinks=change(alone.sinks, row)))

    return answer


def _of_head(head: int) -> Sink:
    def sink(_: torch.Tensor, row: WrongRow) -> torch.Tensor:
        assert row.problem.sinks is not None
        return row.problem.sinks[head : head + 1]

    return sink


def _first_of_group(own: torch.Tensor, row: WrongRow) -> torch.Tensor | None:
    return _of_head(row.head // row.problem.group * row.problem.group)(own, row)
