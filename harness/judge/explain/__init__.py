"""What would make wrong rows right, in words: "as if key 37 were missing". Said only if it predicts further runs.

Each module but the last three has claims of one theme. `support` compares a row with what a claim predicts for it,
`candidates` are the claims that fit the worst row of a failure, and an `Inquiry` tests them on the other rows and on
further runs of the case. It is made once for each failure that is reported, not for each case that fails.
"""

from attnfuzz.harness.judge.explain.claim import Aspect, Stake
from attnfuzz.harness.judge.explain.inquiry import Explanation, Inquiry
from attnfuzz.harness.judge.explain.paged_call import PagedCall, paged_call
from attnfuzz.harness.judge.explain.sampled_rows import sampled_rows, worst_row

__all__ = ["Aspect", "Explanation", "Inquiry", "PagedCall", "Stake", "paged_call", "sampled_rows", "worst_row"]
