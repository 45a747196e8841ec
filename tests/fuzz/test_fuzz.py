"""Fuzz tests of backends: the fixed ones, or those given with --attn-backend."""

import pytest
from forked_python import forked_processes

from attnfuzz.harness.pytest.plugin import AttnFuzz


@pytest.mark.slow
def test_fuzz(attn_fuzz: AttnFuzz) -> None:
    with forked_processes():
        attn_fuzz.run()
