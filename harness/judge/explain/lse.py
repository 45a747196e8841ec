"""What a wrong LSE beside a right output would be the LSE of."""

from dataclasses import replace
from math import exp, expm1, isfinite, log

from attnfuzz.harness.judge.explain.wrong_row import WrongRow

_SHARES = 1e-6, 1e3
"""Shares of the weight that are worth saying."""


def lse_words(row: WrongRow) -> str:
    """What the LSE is as if; "" if it is right, infinite, or nothing simple."""
    truth, lse = row.truth, row.lse
    if lse is None or not isfinite(lse) or not isfinite(truth.lse) or abs(lse - truth.lse) <= truth.lse_bound:
        return ""
    moments = row.answer.moments
    assert moments is not None
    peak = moments.peak[row.token, row.head].item()
    named = {
        "as if its base were e where base 2 is promised": truth.lse * log(2),
        "as if its base were 2 where base e is promised": truth.lse / log(2),
        "as if the LSE were negated": -truth.lse,
        "as if the largest logit were left out of the LSE": truth.lse - peak,
        "as if the LSE were the largest logit": peak,
    }
    alone = row.alone(row.seen)
    if alone.sinks is not None:
        named["as if the sink were left out of the LSE"] = row.alternative("", replace(alone, sinks=None)).lse
    for words, alternative in named.items():
        if abs(lse - alternative) <= truth.lse_bound:
            return words
    return _counted(row, lse)


def _counted(row: WrongRow, lse: float) -> str:
    """What the difference of the LSEs says about the sum of the weights."""
    assert row.answer.moments is not None
    change, keys = lse - row.truth.lse, len(row.seen)
    if abs(change) > log(_SHARES[1]):
        return ""
    if row.answer.moments.gap[row.token, row.head].item() == 0 and row.problem.sinks is None:
        counted = keys * exp(change)
        if round(counted) != keys and abs(log(max(round(counted), 1) / counted)) <= row.truth.lse_bound:
            return f"as if the LSE counted {round(counted):,} keys instead of {keys:,}, all alike"
    share = abs(expm1(change))
    if share < _SHARES[0]:
        return ""
    if change < 0:
        return f"as if {100 * share:.3g}% of the weight were missing from the LSE"
    return f"as if the LSE had {100 * share:.3g}% more weight"
