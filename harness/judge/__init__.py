"""The judge: tiers from exact to statistical, each with a margin (error over bound; above 1 fails).

T0 (`exact`) is what holds bit for bit; T1 (`element_bound`) bounds every element; T2 (`row_error`) bounds the mean
square error of a row; T3 (`common_error`) what all rows have in common; T4 (`lse_bound`) the log-sum-exp; T5
(`exact_weights`) bounds rows whose weights are exact by roundings alone. What a correct kernel's error may be is said
once, in `error_budget`. `judge` runs them in order; `explain` looks for what would make a failure's rows right.
"""

from attnfuzz.harness.judge.judge import Allowed, Judgement, judge

__all__ = ["Allowed", "Judgement", "judge"]
