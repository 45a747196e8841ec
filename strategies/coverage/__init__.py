"""Coverage of the case space: features of cases, their pairs, impossible pairs, and a bias towards missing pairs."""

from attnfuzz.strategies.coverage.features import Pair, all_features, axes, axis_of, features_of, pair, pairs_of
from attnfuzz.strategies.coverage.impossible import impossible, possible_pairs
from attnfuzz.strategies.coverage.pair_bits import pair_bits, pairs_in
from attnfuzz.strategies.lean import choose_lean

__all__ = [
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
