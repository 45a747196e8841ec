"""The judge: tiers of checks from exact to statistical, each with a margin (error over bound; above 1 fails).

T0 (`exact`) checks properties that hold bit for bit. T1 (`element_bound`) bounds every element, T2 (`row_error`) the
mean square error of a row, T3 (`common_error`) the error common to all rows, T4 (`lse_bound`) the log-sum-exp, and T5
(`exact_weights`) rows whose weights are exact. T6 (`metamorphic`) compares related runs. `error_budget` derives the
error that a correct kernel may have. `judge` runs the tiers in order; `explain` looks for mistakes that would produce
the failing rows.
"""

from attnfuzz.harness.judge.judge import Judgement, judge

__all__ = ["Judgement", "judge"]
