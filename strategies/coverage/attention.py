"""The space of cases of attention."""

from attnfuzz.reference.features import TABLE
from attnfuzz.strategies.coverage.rules import Rules
from attnfuzz.strategies.coverage.rules_of_attention import LACKS, MEANING, NOT_DRAWN
from attnfuzz.strategies.coverage.rules_of_buckets import BUCKETS
from attnfuzz.strategies.coverage.space import CaseSpace

ATTENTION_SPACE = CaseSpace(TABLE, Rules(LACKS, (*MEANING, *NOT_DRAWN), BUCKETS))
"""The features of `reference.features`, and the rules for them."""

impossible = ATTENTION_SPACE.impossible
possible_pairs = ATTENTION_SPACE.possible_pairs
pair_bits = ATTENTION_SPACE.pair_bits
pairs_in = ATTENTION_SPACE.pairs_in
