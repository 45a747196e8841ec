"""Explanations of wrong rows, as in "as if key 37 were missing", printed only if they also predict further runs.

The claims of each theme have a module. `support` compares a row with a claim's prediction, `candidates` are the claims
that fit a failure's worst row, and an `Inquiry` tests them on the other rows and on further runs of the case. An
inquiry is made once per reported failure, not for each failing case.
"""

from attnfuzz.harness.judge.explain.claim import POSITIONS, Aspect, Stake
from attnfuzz.harness.judge.explain.inquiry import Explanation, Inquiry
from attnfuzz.harness.judge.explain.paged_call import PagedCall, paged_call
from attnfuzz.harness.judge.explain.row_orders import RowOrders
from attnfuzz.harness.judge.explain.sampled_rows import sampled_rows, worst_row

__all__ = [
    "POSITIONS",
    "Aspect",
    "Explanation",
    "Inquiry",
    "PagedCall",
    "RowOrders",
    "Stake",
    "paged_call",
    "sampled_rows",
    "worst_row",
]
