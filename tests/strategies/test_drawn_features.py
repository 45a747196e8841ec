"""The strategies draw each feature of the table that a backend has."""

import pytest

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.reference.case import Case
from attnfuzz.reference.features import TABLE

CAPABILITIES = [resolve(name).capability for name in ("trtllm_mha", "trtllm_mla", "torch_sdpa")]


@pytest.mark.slow
@pytest.mark.draws
def test_several_values_of_each_feature_are_drawn(mha: list[Case], mla: list[Case], eager: list[Case]) -> None:
    drawn = frozenset().union(*map(TABLE.coverage_of, (*mha, *mla, *eager)))
    for row in TABLE.rows:
        possible = set(row.axis.values)
        if row.supported is not None:
            possible = {value for can in CAPABILITIES for value in row.supported(can)}
        seen = drawn.intersection(row.axis.features)
        assert len(seen) >= min(2, len(possible)), (row.name, seen)
