"""Fits a noise model to samples of a correct kernel.

The judge's formulas say how much each parameter adds to the mean square error of an output row (T2) and of an LSE (T4),
relative to the theoretical model: y_r = known_r + sum_k theta_k term_rk, theta_k being the square of a parameter over
its theoretical value. For errors that are normal, the likelihood of y is that of a gamma distribution, and its maximum
for theta >= 0 is found by multiplicative updates, as in matrix factorization with the divergence of Itakura and Saito
(Fevotte, Bertin and Durrieu, 2009, section 4.1).

A fit only tightens: no parameter exceeds its theoretical value. One that the rows can't determine stays there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log2, sqrt

import torch
from msgspec.structs import replace

from attnfuzz.harness.calibrate.margins import holds
from attnfuzz.harness.calibrate.sample import Sample
from attnfuzz.harness.judge.error_budget import UNIFORM, ErrorBudget
from attnfuzz.harness.judge.lse_bound import independent_lse_error, shared_lse_error
from attnfuzz.reference.noise import NoiseModel, Origin

PARAMETERS = ("probabilities", "row_sum", "logits", "accumulate", "exponential", "tanh")
"""The fitted parameters: root mean squares. `underflow` and `bias` are the largest errors of their kind, which drawn
rows need not show, so they are not fitted."""

SAFETY = 4.0
"""Factor by which fitted parameters are raised; even without it, no fitted or held-out row fails."""

TIGHTEST = 1 / 32
"""Least share of a theoretical value that is fitted: smaller contributions can't be seen."""

TELLING_ROWS = 250.0
"""Information needed to fit a parameter, in rows whose error is due to it alone."""

_LOWERED_FIRST = ("accumulate", "exponential", "logits", "tanh", "row_sum", "probabilities")
"""Of interchangeable parameters, the first is lowered most: sums over many keys hide most."""

_UPDATES = 100
_FP32 = 2.0**-24
_NOTHING = 2.0**-60


@dataclass(frozen=True)
class Terms:
    """The linear model of mean square errors: `observed`, `known` [R] and `terms` [R, K] of K `names`, fp64."""

    names: tuple[str, ...]
    observed: torch.Tensor
    known: torch.Tensor
    terms: torch.Tensor


def fit(
    samples: Sequence[Sample], held_out: Sequence[Sample], theory: NoiseModel
) -> tuple[NoiseModel, tuple[str, ...]]:
    """Fit the model. Returns it, safety included, and the names of the parameters that the rows determine.

    The likeliest parameters come from `samples` alone. `theory`, which must hold, is lowered towards them, parameter by
    parameter, as far as it holds for `samples` and `held_out`; then raised by `SAFETY`.
    """
    least = least_shares(terms_of(samples, theory))
    everything = [*samples, *held_out]
    shares = dict.fromkeys(least, 1.0)
    for name in sorted(least, key=_LOWERED_FIRST.index):

        def holds_at(share: float, name: str = name) -> bool:
            return holds(everything, scaled(theory, {**shares, name: share}))

        shares[name] = _lowest(max(least[name], TIGHTEST), holds_at)
    fitted = scaled(theory, {name: min(share * SAFETY, 1.0) for name, share in shares.items()})
    return replace(fitted, origin=Origin.CALIBRATED), tuple(shares)


def _lowest(least: float, holds_at: Callable[[float], bool]) -> float:
    """Search for the lowest of the shares 1, 1/2, 1/4, ... down to `least` that holds, by bisection; 1 always does."""
    holding, failing = 0, ceil(-log2(least)) + 1
    while failing - holding > 1:
        middle = (holding + failing) // 2
        if holds_at(max(0.5**middle, least)):
            holding = middle
        else:
            failing = middle
    return max(0.5**holding, least)


def scaled(theory: NoiseModel, shares: dict[str, float]) -> NoiseModel:
    """Scale each named parameter to that share of its theoretical value."""
    return replace(theory, **{name: share * getattr(theory, name) for name, share in shares.items()})


def least_shares(model: Terms) -> dict[str, float]:
    """Estimate the likeliest share of the theoretical value, for each parameter that the rows determine; at most 1."""
    free = list(range(len(model.names)))
    while True:
        theta = _likeliest(model, free)
        telling = {k: _information(model, theta, k) for k in free}
        lost = [k for k in free if telling[k] < TELLING_ROWS]
        if not lost:
            return {model.names[k]: sqrt(theta[k].item()) for k in free}
        free.remove(min(lost, key=telling.__getitem__))


def terms_of(samples: Sequence[Sample], theory: NoiseModel) -> Terms:
    """Compute each parameter's contribution to the mean square errors of all rows of `samples` that see a key."""
    names = tuple(name for name in PARAMETERS if getattr(theory, name) > 0)
    rows = torch.cat([rows for sample in samples for rows in _rows(sample, theory, names)])
    return Terms(names, rows[:, 0], rows[:, 1], rows[:, 2:])


def _rows(sample: Sample, theory: NoiseModel, names: Sequence[str]) -> Iterator[torch.Tensor]:
    """Yield rows (observed, known, terms...) [n, 2 + K] of outputs, then of LSEs; the theoretical model is 1."""
    whole = sample.under(theory)
    sees = whole.sees
    nothing = scaled(theory, dict.fromkeys(names, _NOTHING))
    models = [nothing, *(replace(nothing, **{name: getattr(theory, name)}) for name in names)]
    budgets = [sample.under(model).budget for model in models]

    variance = whole.budget.variance
    known, *single = (budget.variance / variance for budget in budgets)
    columns = [whole.error.square() / variance, known, *(one - known for one in single)]
    yield torch.stack([column.mean(dim=-1)[sees].flatten() for column in columns], dim=-1)

    if whole.lse is not None:
        rounding = _lse_rounding(whole.budget)
        # T4's terms, independent ones at their root mean square.
        least, *errors = (shared_lse_error(budget) + independent_lse_error(budget) for budget in budgets)
        added = [(error - least).square() for error in errors]
        variance = torch.stack([rounding, *added]).sum(dim=0)
        columns = [whole.lse_error(whole.lse_unit).square(), rounding, *added]
        yield torch.stack([(column / variance)[sees].flatten() for column in columns], dim=-1)


def _lse_rounding(budget: ErrorBudget) -> torch.Tensor:
    """Mean square error of an LSE [T, Hq] whose numbers are rounded to fp32, once and once per merge."""
    return UNIFORM * budget.roundings * (_FP32 * budget.row_exponent) ** 2


def _likeliest(model: Terms, free: Sequence[int]) -> torch.Tensor:
    """Maximize the likelihood over theta [K]: at most 1 for free parameters, 1 for the others."""
    theta = torch.ones(len(model.names), dtype=torch.float64)
    if not free:
        return theta
    for _ in range(_UPDATES):
        mean = model.known + model.terms @ theta
        up = model.terms[:, free].T @ (model.observed / mean**2)
        down = (model.terms[:, free].T @ (1 / mean)).clamp(min=_NOTHING)
        theta[free] = (theta[free] * (up / down).sqrt()).clamp(_NOTHING, 1.0)
    return theta


def _information(model: Terms, theta: torch.Tensor, k: int) -> float:
    """Compute the information on parameter k, in rows: the squared share that its theoretical value has of a mean."""
    term = model.terms[:, k]
    rest = model.known + model.terms @ theta - theta[k] * term
    return (term / (rest + term)).square().sum().item()
