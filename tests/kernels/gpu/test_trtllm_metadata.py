"""TRT-LLM sessions of both architectures on the CPU: calls bind to FlashInfer, metadata gives the right answer."""

from collections.abc import Callable

import msgspec
import pytest
from recorder import Launched

pytest.importorskip("flashinfer", reason="binds to the installed FlashInfer")
from small_cases import run, step
from trtllm_on_cpu import named

from attnfuzz.harness.backends.registry import load, resolve
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.reference.case import Case, KvView, Launch, Mode, Step, Views
from attnfuzz.reference.dtypes import DType

pytestmark = pytest.mark.slow

DECODE = "trtllm_batch_decode_with_kv_cache"
CONTEXT = "trtllm_fmha_v2_prefill"


PADDED_AFTER_PLANNING = (step(Mode.DRAFT_EXTEND_V2, *((4, 6 + slot) for slot in range(10)), stride=4, rows=12),)
"""Ten requests of a draft extend, padded to twelve (SGLang PR #21649 and #24566)."""

ACCEPTED_LESS = (
    step(Mode.DRAFT_EXTEND, stride=4, rows=2, launch=Launch.CAPTURE),
    step(Mode.DRAFT_EXTEND, (2, 9), (1, 14), stride=4, rows=2, launch=Launch.REPLAY),
)
"""A replay in which fewer tokens were accepted than captured (SGLang PR #21987)."""

CHUNK_WITHOUT_KEYS = (step(Mode.CHUNKED_PREFILL, (2, 5), (3, 12)),)
"""Prefixes of which one has ended when the other's second chunk begins (SGLang PR #22688)."""


def over(backend: str, *steps: Step) -> Case:
    """A case over the simplest geometry that a backend has modules for, with chunks of four tokens."""
    geometry = resolve(backend).capability.buckets[0].simplest
    return Case(backend=backend, geometry=geometry, steps=steps, chunk_capacity=8)


def kinds(verdict: Verdict) -> set[Kind]:
    assert verdict.unsupported is None
    return {observation.kind for observation in verdict.failures}


def paired(*steps: Step) -> Case:
    """A case on the only KV view that the backend has."""
    case = over(named("HOPPER_MHA"), *steps)
    return msgspec.structs.replace(case, views=Views(kv=KvView.PAIRED))


def test_decode_and_verify_run_on_xqa_and_other_modes_on_fmha_v2(launches_of: Callable[[Case], list[Launched]]) -> None:
    for mode in Mode.of_kernels():
        stride = 4 if mode.speculative else 0
        (launched,) = launches_of(paired(step(mode, (1 if mode is Mode.DECODE else 4, 9), stride=stride)))
        on_xqa = mode in (Mode.DECODE, Mode.TARGET_VERIFY)
        assert launched.op.name == (DECODE if on_xqa else CONTEXT)
        assert ("mask" in launched.arguments) == (mode is Mode.TARGET_VERIFY)


def test_stated_keys_are_never_fewer_than_queries(launches_of: Callable[[Case], list[Launched]]) -> None:
    (launched,) = launches_of(paired(step(Mode.EXTEND, (7, 3))))
    assert (launched.arguments["max_q_len"], launched.arguments["max_kv_len"]) == (7, 7)


def test_geometries_without_a_context_kernel_only_decode() -> None:
    capability = resolve("hopper:trtllm_mha").capability
    only = [bucket.modes for bucket in capability.buckets if bucket.dtype is DType.FLOAT16]
    assert only == [(Mode.DECODE, Mode.TARGET_VERIFY)]


def test_as_served_the_rest_of_a_last_page_is_finite(bench_of: Callable[[Case], Bench]) -> None:
    case = paired(step(Mode.EXTEND, (7, 9), (7, 30)))
    held = []
    for backend in ("HOPPER_MHA", "HOPPER_MHA_AS_SERVED"):
        session = load(named(backend)).open(case, bench_of(case))
        session.forward(0)
        pages = [page for slot in session._kv.pages.values() for page in slot]  # type: ignore[attr-defined]
        held.append(bool(session._kv.cache[pages].isfinite().all()))  # type: ignore[attr-defined]
    assert held == [False, True]


def test_a_batch_that_the_metadata_has_no_rows_for_is_refused_before_the_launch() -> None:
    """FlashInfer compares the rows of the page table: what faults elsewhere (SGLang PR #21649) is rejected here."""
    case = paired(*PADDED_AFTER_PLANNING)
    assert kinds(run(case, named("HOPPER_MHA_21649_BEFORE"))) == {Kind.UNEXPECTED_REJECTION}
    assert not kinds(run(case))


def test_a_draft_extend_padded_after_planning_faults_on_xqa(runner: Runner) -> None:
    case = paired(*PADDED_AFTER_PLANNING)
    assert kinds(runner.verdict(case, named("HOPPER_MHA_24566"))) == {Kind.ILLEGAL_ACCESS}
    assert not kinds(run(case))


def test_a_replay_of_fewer_accepted_tokens_than_captured_loses_keys() -> None:
    case = over(named("HOPPER_MLA"), *ACCEPTED_LESS)
    failed = kinds(run(case, named("HOPPER_MLA_21987_BEFORE")))
    assert failed >= {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH}
    assert not kinds(run(case))


def test_rows_without_keys_need_no_fixup_where_the_wrapper_writes_them() -> None:
    """Its kernels give 0 and -inf: what was reported (SGLang PR #22688) can't show."""
    case = over(named("HOPPER_MLA"), *CHUNK_WITHOUT_KEYS)
    assert not kinds(run(case, named("HOPPER_MLA_22688_BEFORE")))
    assert not kinds(run(case))


@pytest.mark.parametrize(
    ("revision", "steps", "found"),
    [
        ("BLACKWELL_MHA_21649_BEFORE", PADDED_AFTER_PLANNING, {Kind.ILLEGAL_ACCESS}),
        # It kills its worker as the first does, at an import of FlashInfer for each.
        pytest.param("BLACKWELL_MHA_24566", PADDED_AFTER_PLANNING, {Kind.ILLEGAL_ACCESS}, marks=pytest.mark.long),
        ("BLACKWELL_MLA_21987_BEFORE", ACCEPTED_LESS, {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH}),
        ("BLACKWELL_MLA_22688_BEFORE", CHUNK_WITHOUT_KEYS, {Kind.UNWRITTEN}),
    ],
)
def test_a_revision_fails_on_blackwell_as_it_was_reported(
    request: pytest.FixtureRequest, revision: str, steps: tuple[Step, ...], found: set[Kind]
) -> None:
    fixed = named(revision[: len("BLACKWELL_MHA")])
    case = over(fixed, *steps)
    # Only a case that kills its process needs a worker, which takes 2 s to import FlashInfer after each death.
    judged = request.getfixturevalue("runner").verdict if Kind.ILLEGAL_ACCESS in found else run
    assert kinds(judged(case, named(revision))) >= found
    assert not kinds(run(case))
