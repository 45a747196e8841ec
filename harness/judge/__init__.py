"""The judge: tiers from exact to statistical, each with a margin (error over bound; above 1 fails).

T0 (`exact`) is what holds bit for bit; T1 (`element_bound`) bounds every element; T2 (`row_error`) bounds the mean
square error of a row; T4 (`lse_bound`) bounds the log-sum-exp. What a correct kernel's error may be is said once, in
`error_budget`.
"""

from attnfuzz.harness.judge.judge import Judgement, judge

__all__ = ["Judgement", "judge"]
