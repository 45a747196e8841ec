"""Planners of sparse attention: the general strategies pass in releases, and find mistakes in a planner."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.reference.any_case import AnyCase

pytestmark = pytest.mark.vllm

INDEXER = Path("vllm", "v1", "attention", "backends", "mla", "indexer.py")

MISTAKES = {
    "a prefill's rows see one key less": (
        "            global_ctx = start_pos + 1 + offset\n",
        "            global_ctx = start_pos + offset\n",
    ),
    "lengths of drafts are not those of the buffer": (
        "                    - max_decode_len\n                    + 1\n",
        "                    - max_decode_len\n",
    ),
    "a chunk's tables begin with those of the decodes": (
        "        block_table=block_table[start_idx:end_idx],\n",
        "        block_table=block_table[: end_idx - start_idx],\n",
    ),
    "graphs keep the schedule of their capture": (
        "                schedule_metadata[:] = metadata\n",
        "                pass\n",
    ),
}


def failures(backend: str, runner: Runner, examples: int) -> list[Observation]:
    found: list[Observation] = []

    def visit(case: AnyCase) -> None:
        if not found:
            verdict = runner.verdict(case)
            assert verdict.unsupported is None
            found.extend(verdict.failures)

    run_examples(drawn_cases(backend), visit, examples=examples, seed_of=5)
    return found


@pytest.mark.parametrize(
    "backend",
    [
        "vllm==0.18.1:indexer",
        "vllm==0.31.0:indexer",
        "vllm==0.33.0:indexer",
        "vllm==0.33.0:flashmla_sparse",
        "vllm==0.33.0:flashmla_sparse_attention",
        "vllm==0.33.0:flash_attn_mla_sparse",
        "vllm==0.33.0:flashinfer_mla_sparse",
    ],
)
def test_lists_of_a_release_are_right(backend: str, runner: Runner) -> None:
    assert not failures(backend, runner, 40)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_planner_is_found(mistake: str, plant: Callable[..., str], runner: Runner) -> None:
    tree = plant("0.33.0", INDEXER, *MISTAKES[mistake])
    assert failures(f"{tree}:indexer", runner, 120)
