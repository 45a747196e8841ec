"""The table of features: a row for each feature of cases, from which everything else about it is derived."""

from attnfuzz.reference.features.batch import REQUESTS, STEPS
from attnfuzz.reference.features.calls import CALLS
from attnfuzz.reference.features.geometry import GEOMETRY, SEEN_KEYS
from attnfuzz.reference.features.memory import BUFFERS, PAGES, VIEWS
from attnfuzz.reference.features.numbers import QUERIES, SCALES, VALUES
from attnfuzz.reference.features.serving import RANKS, SCHEDULING
from attnfuzz.reference.features.table import FeatureTable
from attnfuzz.reference.features.writes import PADDED_SLOTS, ROTATION

TABLE = FeatureTable(
    *GEOMETRY,
    *SEEN_KEYS,
    *SCALES,
    *QUERIES,
    *VALUES,
    *PAGES,
    *VIEWS,
    *BUFFERS,
    *PADDED_SLOTS,
    *ROTATION,
    *RANKS,
    *SCHEDULING,
    *CALLS,
    *STEPS,
    *REQUESTS,
)
"""The features of attention and of writing the KV cache."""

__all__ = ["TABLE", "FeatureTable"]
