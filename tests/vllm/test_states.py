"""Recurrent layers of releases: the model runner chooses graphs, and the metadata builders plan states."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference.recurrent.case import PaddedRow, StateCase, StateMode, StateOp, StateRow, StateShape, StateStep

pytestmark = pytest.mark.vllm

RUNNER = Path("vllm", "v1", "worker", "gpu_model_runner.py")
CHOSEN = "            force_uniform_decode=force_uniform_decode,\n        )\n        # Encoder-decoder models"
FIXED = CHOSEN.replace(
    "        )\n",
    """        ) and (
            force_uniform_decode is not None
            or (self.input_batch.num_computed_tokens_cpu >= self.input_batch.num_prompt_tokens)[:num_reqs].all()
        )
""",
)
"""The choice of a graph, and one that asks whether all requests decode (vLLM PR #47123 does)."""


def prompt(backend: str, op: StateOp, drafts: int) -> StateCase:
    """A prompt as long as a verify."""
    return StateCase(
        backend=backend,
        op=op,
        normed=op is StateOp.GATED_DELTA,
        shape=StateShape(heads=1, value_heads=1, key_dim=8, value_dim=8),
        padded_row=PaddedRow.DUMMY,
        drafts=drafts,
        steps=(StateStep(mode=StateMode.PREFILL, rows=(StateRow(lane=0, tokens=1 + drafts, initial=False),)),),
    )


@pytest.mark.parametrize(("kind", "op"), [("gdn", StateOp.GATED_DELTA), ("mamba2", StateOp.SSM)])
def test_a_prompt_as_long_as_a_verify_is_wrong_unless_graphs_are_for_decodes_alone(
    kind: str, op: StateOp, runner: Runner, plant: Callable[..., str]
) -> None:
    tree = plant("0.33.0", RUNNER, CHOSEN, FIXED)
    for drafts in (0, 2):
        assert runner.verdict(prompt(f"vllm==0.33.0:{kind}", op, drafts)).failures
        verdict = runner.verdict(prompt(f"{tree}:{kind}", op, drafts))
        assert (verdict.failures, verdict.unsupported) == ((), None)
