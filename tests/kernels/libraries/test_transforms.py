"""vLLM's rotation on CPUs: drawn cases pass, but for a known fault."""

import pytest
from repetition import examples
from small_cases import drawn, lighter

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.libraries.vllm_cpu_writes import ROTARY_EMBEDDING
from attnfuzz.reference.case import Case
from attnfuzz.reference.rope import Pairing


def stores_unaligned(case: Case) -> bool:
    """Whether halves are longer than a vector of eight, and no multiple of it."""
    assert case.rope is not None
    half = case.rope.dim(case.geometry) // 2
    return case.rope.pairing is Pairing.HALVES and half > 8 and half % 8 != 0


@pytest.mark.slow
@pytest.mark.skipif(ROTARY_EMBEDDING.missing() is not None, reason="vllm-cpu is not installed")
@examples(25, 200)
def test_vllms_rotation_passes_but_for_halves_of_unaligned_vectors(count: int) -> None:
    """In a process, which a misaligned access ends."""
    with Runner() as runner:
        for case in lighter(drawn(ROTARY_EMBEDDING.name, count)):
            verdict = runner.verdict(case)
            if stores_unaligned(case):
                assert {each.kind for each in verdict.observations} <= {Kind.ILLEGAL_ACCESS}
            else:
                assert (verdict.unsupported, verdict.observations) == (None, ()), case
