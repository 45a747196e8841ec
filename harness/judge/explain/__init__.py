"""What would make a wrong row right, in words: "as if key 37 were missing".

Each module has hypotheses of one theme. A hypothesis gives alternative answers for the row, in fp64; `fit` says how
well the row agrees with one, and `choice` chooses. It is asked only about rows that have failed.
"""

from attnfuzz.harness.judge.explain.choice import explain
from attnfuzz.harness.judge.explain.wrong_row import WrongRow

__all__ = ["WrongRow", "explain"]
