"""Fuzz tests of backends: the fixed ones, or those given with --attn-backend."""

from attnfuzz.harness.pytest.plugin import AttnFuzz


def test_fuzz(attn_fuzz: AttnFuzz) -> None:
    attn_fuzz.run()
