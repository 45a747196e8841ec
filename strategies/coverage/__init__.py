"""Coverage of the space of a family's cases: features, their pairs, impossible pairs, and a bias to missing pairs.

Functions are those of attention, other families have a `CaseSpace`.
"""

from attnfuzz.strategies.coverage.attention import ATTENTION_SPACE, impossible, pair_bits, pairs_in, possible_pairs
from attnfuzz.strategies.coverage.features import all_features, axes, axis_of, features_of, pairs_of
from attnfuzz.strategies.coverage.numbering import Pair, pair
from attnfuzz.strategies.coverage.space import CaseSpace
from attnfuzz.strategies.lean import choose_lean

__all__ = [
    "ATTENTION_SPACE",
    "CaseSpace",
    "Pair",
    "all_features",
    "axes",
    "axis_of",
    "choose_lean",
    "features_of",
    "impossible",
    "pair",
    "pair_bits",
    "pairs_in",
    "pairs_of",
    "possible_pairs",
]
