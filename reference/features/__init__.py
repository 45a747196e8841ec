"""The table of features: a row for each feature of cases, from which everything else about it is derived."""

from typing import Any

from attnfuzz.reference.features.batch import BATCH
from attnfuzz.reference.features.calls import CALLS
from attnfuzz.reference.features.geometry import GEOMETRY, SEEN_KEYS
from attnfuzz.reference.features.memory import MEMORY
from attnfuzz.reference.features.numbers import NUMBERS
from attnfuzz.reference.features.row import FeatureRow
from attnfuzz.reference.features.serving import SERVING
from attnfuzz.reference.features.writes import WRITES

Table = tuple[FeatureRow[Any], ...]

TABLE: Table = (*BATCH, *GEOMETRY, *SEEN_KEYS, *NUMBERS, *MEMORY, *WRITES, *SERVING, *CALLS)
"""The features of attention and of writing the KV cache."""

__all__ = ["TABLE", "FeatureRow", "Table"]
