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


COPIES = Path("vllm", "v1", "worker", "mamba_utils.py")


def across_blocks(backend: str) -> StateCase:
    """Verifies that come into other blocks of a prefix cache, and accept one to three tokens of the last one."""
    accepted = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
    steps = tuple(
        StateStep(mode=StateMode.VERIFY, rows=tuple(StateRow(lane, 3, accepted=each) for lane, each in enumerate(step)))
        for step in accepted
    )
    shape = StateShape(heads=1, value_heads=1, key_dim=8, value_dim=8)
    return StateCase(
        backend=backend, op=StateOp.SSM, shape=shape, padded_row=PaddedRow.DUMMY, drafts=2, move=True, steps=steps
    )


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("            fused.token_bias.np[i] = accept_token_bias\n", "            fused.token_bias.np[i] = 0\n"),
        ("aligned_new_computed // block_size - 1\n", "aligned_new_computed // block_size\n"),
    ],
    ids=["accepted tokens left out of a copy", "the end of a block copied to the next one"],
)
def test_copies_between_blocks_of_a_prefix_cache_are_judged(
    right: str, wrong: str, runner: Runner, plant: Callable[..., str]
) -> None:
    assert runner.verdict(across_blocks("vllm==0.33.0:mamba2")).failures == ()
    failures = runner.verdict(across_blocks(f"{plant('0.33.0', COPIES, right, wrong)}:mamba2")).failures
    assert failures
    # The call of preprocess_mamba, which made the first copy.
    assert "line 4057" in failures[0].message


BUILDER = Path("vllm", "v1", "attention", "backends", "mamba_attn.py")
CHUNKS = "            for chunk in range(n_chunks):\n"
STARTS = f"{CHUNKS}                seq_idx.append(req_idx)\n                cu_chunk_seqlen.append("
LAST = "                last_chunk_indices.append(len(cu_chunk_seqlen) - 1"


@pytest.mark.parametrize(
    ("right", "wrong"), [(STARTS, f"{STARTS}-(req_idx > 0) + "), (LAST, f"{LAST} - (req_idx == 0)")]
)
def test_the_chunks_of_a_prompt_of_mamba_are_judged(
    right: str, wrong: str, runner: Runner, plant: Callable[..., str]
) -> None:
    rows = (StateRow(lane=0, tokens=20, initial=False), StateRow(lane=1, tokens=9))
    case = prompt("vllm==0.33.0:mamba2", StateOp.SSM, 0).having(steps=(StateStep(mode=StateMode.PREFILL, rows=rows),))
    assert runner.verdict(case).failures == ()
    failures = runner.verdict(case.having(backend=f"{plant('0.33.0', BUILDER, right, wrong)}:mamba2")).failures
    assert failures
    # The line that makes the tensor of starts.
    assert "mamba_attn.py:374" in failures[0].message
