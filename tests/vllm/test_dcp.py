"""Ranks of a release that share keys: right ones pass, and mistakes that are planted in a copy of one are found."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from small_cases import SERVED_LATENTS

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case, Launch, Mode, Outputs, Pages, Request, Step, TableTail
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout
from attnfuzz.reference.serving import Interleave, SharedKeys

pytestmark = pytest.mark.vllm

READ = ("0.29.0", "0.33.0")

PLANTED_IN = "0.33.0"

GEOMETRY = Geometry(
    q_heads=4,
    kv_heads=1,
    head_dim_qk=64,
    head_dim_vo=64,
    page_size=16,
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
    kv_layout=KvLayout.NHD,
)
DRAFTED = (Request(0, 4, 40), Request(1, 4, 17))
CAPTURE, REPLAY = (
    Step(mode=Mode.TARGET_VERIFY, requests=requests, padded_tokens=8, tokens_per_request=4, launch=launch)
    for launch, requests in ((Launch.CAPTURE, ()), (Launch.REPLAY, DRAFTED))
)
FIRST = Step(mode=Mode.EXTEND, requests=(Request(0, 5, 5), Request(1, 7, 7)), padded_tokens=12)
MIXED = Step(mode=Mode.EXTEND, requests=(Request(0, 5, 37), Request(1, 4, 4), Request(2, 1, 9)), padded_tokens=12)
DECODE = Step(mode=Mode.DECODE, requests=(Request(0, 1, 40), Request(1, 1, 2)), padded_tokens=3, tokens_per_request=1)
STEPS = {
    "prompts without a prefix": (FIRST,),
    "prompts, a prefix and a decode": (MIXED,),
    "decode": (DECODE,),
    "drafts": (replace(REPLAY, launch=Launch.EAGER),),
    "graph": (CAPTURE, REPLAY),
}


CAPTURED = (
    Step(mode=Mode.DECODE, requests=(), padded_tokens=3, tokens_per_request=1, launch=Launch.CAPTURE),
    replace(DECODE, launch=Launch.REPLAY),
)
OF_FLASHINFER = {
    **{name: steps for name, steps in STEPS.items() if name not in ("graph", "prompts, a prefix and a decode")},
    "prompts and a prefix": (replace(MIXED, requests=MIXED.requests[:2]),),
    "graph of decodes": CAPTURED,
}
"""0.33.0 breaks the contract of trtllm-gen's kernel where decodes come first: see below."""


OF_LATENTS = {
    **{name: steps for name, steps in STEPS.items() if name != "prompts, a prefix and a decode"},
    "drafts of which a rank has none": (
        Step(mode=Mode.TARGET_VERIFY, requests=(Request(0, 4, 5),), padded_tokens=4, tokens_per_request=4),
    ),
    "chunks": (
        Step(
            mode=Mode.EXTEND,
            requests=(Request(0, 5, 237), Request(1, 3, 3), Request(3, 5, 150), Request(2, 1, 9)),
            padded_tokens=16,
        ),
    ),
}
UNEQUAL, UNEVEN = (
    Step(
        mode=Mode.DRAFT_EXTEND,
        requests=(Request(0, 4, 40), Request(1, tokens, 17)),
        padded_tokens=4 + tokens,
        tokens_per_request=4,
    )
    for tokens in (2, 1)
)
"""Drafts of different numbers, whose tokens are a multiple of the requests, or not."""


def case(release: str, *steps: Step, shared_keys: SharedKeys, kind: str = "flash_attn_dcp") -> Case:
    heads_first = replace(GEOMETRY, kv_layout=KvLayout.HND)
    return Case(
        backend=f"{release}:{kind}",
        geometry={"flash_attn_dcp": GEOMETRY, "flashinfer_mla_dcp": SERVED_LATENTS}.get(kind, heads_first),
        steps=steps,
        pages=Pages(tail=TableTail.STALE),
        shared_keys=shared_keys,
        chunk_capacity=64,
    )


@pytest.mark.parametrize("version", READ)
def test_a_release_passes(version: str, passes: Callable[..., Verdict]) -> None:
    for number, steps in enumerate(STEPS.values()):
        shared = SharedKeys(ranks=(2, 4)[number % 2], all_to_all=number in (1, 4))
        passes(case(f"vllm=={version}", *steps, shared_keys=shared))


@pytest.mark.parametrize("kind", ["flashinfer_dcp", "flashinfer_dcp_sm90"])
def test_flashinfer_passes(kind: str, passes: Callable[..., Verdict]) -> None:
    for version in ("0.30.0", "0.33.0"):
        for number, steps in enumerate(OF_FLASHINFER.values()):
            shared = SharedKeys(ranks=(2, 4)[number % 2], all_to_all=number in (1, 4))
            passes(case(f"vllm=={version}", *steps, shared_keys=shared, kind=kind))


@pytest.mark.parametrize("version", READ)
def test_latents_pass(version: str, passes: Callable[..., Verdict]) -> None:
    for number, steps in enumerate(OF_LATENTS.values()):
        shared = SharedKeys(ranks=(2, 4)[number % 2], all_to_all=number in (1, 4))
        verdict = passes(case(f"vllm=={version}", *steps, shared_keys=shared, kind="flashinfer_mla_dcp"))
        assert verdict.rows


def test_drafts_of_different_numbers_are_decoded_as_if_they_were_equal(runner: Runner) -> None:
    kind = "flashinfer_mla_dcp"
    for steps, found in ((UNEQUAL, Kind.OUTPUT_MISMATCH), (UNEVEN, Kind.UNEXPECTED_REJECTION)):
        verdict = runner.verdict(case("vllm==0.33.0", steps, shared_keys=SharedKeys(), kind=kind))
        assert found in {each.kind for each in verdict.failures}
        assert not runner.verdict(case("vllm==0.29.0", steps, shared_keys=SharedKeys(), kind=kind)).failures


def test_the_keys_of_prefixes_are_counted_from_those_of_decodes(runner: Runner) -> None:
    verdict = runner.verdict(case("vllm==0.33.0", MIXED, shared_keys=SharedKeys(), kind="flashinfer_dcp"))
    assert {each.kind for each in verdict.failures} == {Kind.CONTRACT_BROKEN}
    for release, kind in (("0.33.0", "flashinfer_dcp_sm90"), ("0.30.0", "flashinfer_dcp")):
        assert not runner.verdict(case(f"vllm=={release}", MIXED, shared_keys=SharedKeys(), kind=kind)).failures


@pytest.mark.parametrize("interleave", [Interleave.QUARTER_PAGE, Interleave.PAGE])
def test_a_release_passes_with_runs_of_tokens_on_each_rank(interleave: Interleave, runner: Runner) -> None:
    for steps in ((MIXED,), (DECODE,)):
        shared = SharedKeys(interleave=interleave)
        assert runner.verdict(case("vllm==0.33.0", *steps, shared_keys=shared)).failures == ()


@pytest.mark.parametrize(("window", "found"), [(127, set()), (16, {Kind.OUTPUT_MISMATCH})])
def test_a_release_counts_windows_in_the_keys_of_a_rank(window: int, found: set[Kind], runner: Runner) -> None:
    # Of a prompt that fits into a step, each rank has all keys; the decode has 40.
    for steps, kinds in (((FIRST,), set()), ((DECODE,), found)):
        windowed = case("vllm==0.33.0", *steps, shared_keys=SharedKeys())
        windowed = replace(windowed, geometry=replace(GEOMETRY, window_left=window))
        verdict = runner.verdict(windowed)
        assert verdict.unsupported is None
        assert {each.kind for each in verdict.failures} == kinds


DRAFTS = Step(mode=Mode.DRAFT_DECODE, requests=(Request(0, 2, 9),), padded_tokens=2, tokens_per_request=2)


@pytest.mark.parametrize("kind", ["flash_attn_dcp", "flashinfer_dcp", "flashinfer_mla_dcp"])
def test_draft_decodes_have_the_slots_of_a_single_rank(kind: str, runner: Runner) -> None:
    verdict = runner.verdict(case("vllm==0.33.0", DRAFTS, shared_keys=SharedKeys(), kind=kind))
    assert verdict.unsupported is None
    assert {Kind.STRAY_WRITE, Kind.UNWRITTEN} <= {each.kind for each in verdict.failures}


BACKEND, FLASHINFER, MERGE, BLOCK_TABLE, OF_MLA = (
    Path("vllm", "v1", *parts)
    for parts in (
        ("attention", "backends", "flash_attn.py"),
        ("attention", "backends", "flashinfer.py"),
        ("attention", "ops", "dcp.py"),
        ("worker", "block_table.py"),
        ("attention", "backends", "mla", "flashinfer_mla.py"),
    )
)
MLA_LAYER = Path("vllm", "model_executor", "layers", "attention", "mla_attention.py")

PLANTED = {
    "a rank's length that is off by one": (
        BACKEND,
        "            self._dcp_context_kv_lens[:num_reqs] = local_context_kv_lens\n",
        "            self._dcp_context_kv_lens[:num_reqs] = (local_context_kv_lens - 1).clamp(min=0)\n",
        (DECODE,),
        Interleave.TOKEN,
        Kind.OUTPUT_MISMATCH,
    ),
    "an LSE to base e that is merged as one to base 2": (
        BACKEND,
        "            return_lse=True,\n        )\n        context_lse_cor",
        "            return_lse=True,\n            is_lse_base_on_e=False,\n        )\n        context_lse_cor",
        (CAPTURE, REPLAY),
        Interleave.TOKEN,
        Kind.OUTPUT_MISMATCH,
    ),
    "lengths that ignore the interleave": (
        BACKEND,
        "                self.cp_kv_cache_interleave_size,\n            )\n            self._dcp_context",
        "                1,\n            )\n            self._dcp_context",
        (DECODE,),
        Interleave.PAGE,
        Kind.OUTPUT_MISMATCH,
    ),
    "a merge of ranks without keys that is NaN": (
        MERGE,
        '        lse_max = tl.where(lse_max == -float("inf"), 0, lse_max)\n        lse -= lse_max\n',
        "        lse -= lse_max\n",
        (MIXED,),
        Interleave.TOKEN,
        Kind.NOT_FINITE,
    ),
    "a rank that decides by its own length to leave out the keys of all": (
        BACKEND,
        "should_skip_dcp_context_attention(\n                    context_kv_lens_cpu\n",
        "should_skip_dcp_context_attention(\n                    local_context_kv_lens\n",
        (Step(mode=Mode.DECODE, requests=(Request(0, 1, 2),), padded_tokens=1, tokens_per_request=1),),
        Interleave.TOKEN,
        Kind.RAISED,
    ),
    "tokens that go to two ranks": (
        BLOCK_TABLE,
        "            ) % TOTAL_CP_WORLD_SIZE == TOTAL_CP_RANK\n",
        "            ) % TOTAL_CP_WORLD_SIZE >= TOTAL_CP_RANK\n",
        (DECODE,),
        Interleave.TOKEN,
        Kind.STRAY_WRITE,
    ),
}


PLANTED_IN_FLASHINFER = {
    "an LSE to base 2 that is merged as one to base e": (
        FLASHINFER,
        "        lse_context = log2_lse_to_ln(lse_context.transpose(0, 1).contiguous())\n",
        "        lse_context = lse_context.transpose(0, 1).contiguous()\n",
        (MIXED,),
        Interleave.TOKEN,
        Kind.OUTPUT_MISMATCH,
    ),
    "lengths that ignore the interleave on trtllm-gen": (
        FLASHINFER,
        "                self.dcp_kv_cache_interleave_size,\n            )\n\n        # Native paged",
        "                1,\n            )\n\n        # Native paged",
        (replace(MIXED, requests=(Request(0, 5, 25),)),),
        Interleave.PAGE,
        Kind.OUTPUT_MISMATCH,
    ),
    "rows of ranks without keys that count": (
        FLASHINFER,
        "        if self._has_empty_ctx:\n            mask_dcp",
        "        if False:\n            mask_dcp",
        (replace(MIXED, requests=(Request(0, 5, 6), Request(1, 4, 40))),),
        Interleave.TOKEN,
        Kind.OUTPUT_MISMATCH,
    ),
}


PLANTED_IN_MLA = {
    "an LSE to base e that is merged as one to base 2 in decodes": (
        OF_MLA,
        "    lse_base_on_e: bool = True\n",
        "    lse_base_on_e: bool = False\n",
        (DECODE,),
        Interleave.TOKEN,
        Kind.OUTPUT_MISMATCH,
    ),
    "bounds of drafts that are a rank's own lengths": (
        MLA_LAYER,
        "                dcp_tot_seq_lens_device = seq_lens[:num_decodes]\n",
        "                dcp_tot_seq_lens_device = dcp_local_seq_lens[:num_decodes]\n",
        STEPS["drafts"],
        Interleave.TOKEN,
        Kind.OUTPUT_MISMATCH,
    ),
    "chunks of a rank that begin where the first one does": (
        MLA_LAYER,
        "                max(0, local_context_len - local_start),\n",
        "                local_context_len,\n",
        OF_LATENTS["chunks"],
        Interleave.TOKEN,
        Kind.RAISED,
    ),
}


KINDS: Mapping[str, Mapping[str, Any]] = {
    "flash_attn_dcp": PLANTED,
    "flashinfer_dcp": PLANTED_IN_FLASHINFER,
    "flashinfer_mla_dcp": PLANTED_IN_MLA,
}


@pytest.mark.parametrize(
    ("backend", "mistake"), [(kind, mistake) for kind, mistakes in KINDS.items() for mistake in mistakes]
)
def test_a_planted_mistake_is_found(backend: str, mistake: str, runner: Runner, plant: Callable[..., str]) -> None:
    place, right, wrong, steps, interleave, kind = KINDS[backend][mistake]
    tree = plant(PLANTED_IN, place, right, wrong)
    shared = SharedKeys(interleave=interleave)
    # Rows that no kernel writes hold plausible numbers: vLLM's merges leave out NaN.
    planted = replace(case(tree, *steps, shared_keys=shared, kind=backend), outputs=Outputs.STALE)
    failures = runner.verdict(planted).failures
    assert kind in {each.kind for each in failures}
