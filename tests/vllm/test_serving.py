"""Cases on the engines of releases: right ones pass, and mistakes that are planted in a scheduler's tree are found."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from engine_cases import ENGINES, case, decode, extend, on_engine, verify
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case import Launch, PageOrder
from attnfuzz.reference.features.serving import may_be_asynchronous

pytestmark = pytest.mark.vllm

READ = ("0.26.0", "0.33.0")
PLANTED_IN = "0.33.0"

ON_GPUS = tuple(kind for kind in ENGINES if kind != "engine_cpu")

CASES = {
    "a prefix that was computed for another request": case(extend((0, 20, 20), (1, 5, 37)), decode((0, 1, 21))),
    "prompts in chunks": case(extend((0, 50, 50), (1, 20, 20)), decode((0, 1, 51), (1, 1, 21)), budget=17),
    "requests on larger pages that are preempted": case(verify((0, 7, 66), (1, 7, 103)), budget=48, shortage=3),
    "requests that are preempted": case(verify((0, 7, 34), (1, 7, 55)), budget=16, shortage=3),
    "drafts that are accepted, in part or as a whole": case(
        verify((0, 4, 40), (1, 4, 17)), verify((0, 4, 41), (1, 4, 21)), verify((0, 4, 44), (1, 4, 23))
    ),
    "blocks that requests share": case(
        extend((0, 33, 33)),
        extend((1, 33, 33)),
        extend((2, 10, 10), (3, 10, 10)),
        decode((0, 1, 60)),
        order=PageOrder.SHARED_PREFIX,
        shortage=4,
    ),
    "a graph": case(decode(launch=Launch.CAPTURE, rows=4), decode((0, 1, 18), (1, 1, 3), launch=Launch.REPLAY, rows=4)),
}


@pytest.mark.parametrize(("version", "kind"), [*product(READ, ON_GPUS), ("0.32.0", "engine_cpu")])
def test_an_engine_passes(version: str, kind: str, runner: Runner) -> None:
    for each in CASES.values():
        for window in (-1,) if ENGINES[kind].latent else (-1, 7, 20):
            for seed, asynchronous in product((0, 1), {False, kind in ON_GPUS and may_be_asynchronous(each.steps)}):
                serving = replace(each.serving, seed=seed, asynchronous=asynchronous)
                served = on_engine(f"vllm=={version}", kind, replace(each, serving=serving), window=window)
                verdict = runner.verdict(served)
                # 0.26.0: v1/attention/backends/flashinfer.py:799. Without a GPU, there are no graphs.
                refused = (version == "0.26.0" and kind == "engine_sm90" and window >= 0) or (
                    kind not in ON_GPUS and any(step.launch is not Launch.EAGER for step in each.steps)
                )
                assert (verdict.unsupported is not None) == refused
                assert verdict.failures == ()


SCHEDULER, BLOCKS, RUNNER = (
    Path("vllm", "v1", *parts)
    for parts in (("core", "sched", "scheduler.py"), ("core", "block_pool.py"), ("worker", "gpu_model_runner.py"))
)

PLANTED = {
    "a block that is free although another request has it": (
        BLOCKS,
        "                self.free_block_queue.remove(block)\n            block.ref_cnt += 1\n",
        "                self.free_block_queue.remove(block)\n            block.ref_cnt = 1\n",
        {"engine": "blocks that requests share", "engine_flash_attn": "blocks that requests share"},
        Kind.OUTPUT_MISMATCH,
    ),
    "a rejected draft that counts as computed": (
        SCHEDULER,
        "request.num_computed_tokens -= num_rejected\n",
        "request.num_computed_tokens -= max(0, num_rejected - 1)\n",
        dict.fromkeys(ON_GPUS, "drafts that are accepted, in part or as a whole"),
        Kind.OUTPUT_MISMATCH,
    ),
    "a request that keeps its blocks when it is resumed": (
        RUNNER,
        "                req_state.block_ids = new_block_ids\n",
        "                for own, new in zip(req_state.block_ids, new_block_ids): own[len(own):] = new[len(own):]\n",
        {"engine": "requests that are preempted", "engine_mla": "requests on larger pages that are preempted"},
        Kind.UNWRITTEN,
    ),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, runner: Runner, plant: Callable[..., str]) -> None:
    place, right, wrong, shown_by, kind = PLANTED[mistake]
    tree = plant(PLANTED_IN, place, right, wrong)
    for engine, name in shown_by.items():
        failures = runner.verdict(on_engine(tree, engine, CASES[name])).failures
        assert kind in {each.kind for each in failures}
