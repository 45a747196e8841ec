"""Small cases for tests of backends, by hand or drawn, and their results in this process."""

from collections.abc import Sequence

import torch
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.calls import CallCase, pack
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, Latent
from attnfuzz.strategies.cases import cases

FEW = 40
"""Cases that a test in `make test` draws at most; those that run long draw more."""

HEADS = Geometry(
    q_heads=4,
    kv_heads=2,
    head_dim_qk=16,
    head_dim_vo=16,
    page_size=4,
    dtype=DType.FLOAT32,
    kv_dtype=DType.FLOAT32,
)
"""Grouped heads on pages of 4 tokens."""

LATENTS = Geometry(
    q_heads=4,
    kv_heads=1,
    head_dim_qk=24,
    head_dim_vo=16,
    page_size=4,
    dtype=DType.FLOAT32,
    kv_dtype=DType.FLOAT32,
    latent=Latent(rank=16, rope=8, nope=8, vo=16),
)
"""Latents on pages of 4 tokens."""

SERVED_LATENTS = replace(
    LATENTS,
    head_dim_qk=48,
    head_dim_vo=32,
    page_size=32,
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
    latent=Latent(rank=32, rope=16, nope=24, vo=16),
)
"""Latents as a server may have them: on pages of 32, in bfloat16, with keys and values of other dims."""


def step(mode: Mode, *lengths: tuple[int, int], stride: int = 0, rows: int = 0, launch: Launch = Launch.EAGER) -> Step:
    """A step of requests with these (q_len, kv_len), in slots from 0 on.

    `rows` is the padded batch of a mode with a `stride`, and otherwise the padded number of query tokens; at least what
    the requests need.
    """
    stride = 1 if mode is Mode.DECODE else stride
    whole = mode.uniform or launch is not Launch.EAGER
    tokens = sum(q_len for q_len, _ in lengths)
    return Step(
        mode=mode,
        requests=tuple(Request(slot, q_len, kv_len) for slot, (q_len, kv_len) in enumerate(lengths)),
        padded_tokens=max(rows, len(lengths)) * stride if whole else max(rows, tokens),
        tokens_per_request=stride,
        launch=launch,
    )


def drawn(backend: str, count: int, seed: int = 20250801) -> list[Case]:
    """So many cases from the general strategies for what `backend` supports: the same in every run."""
    return drawn_for(resolve(backend).capability, count, backend, seed)


def drawn_for(capability: Capability, count: int, backend: str = "", seed: int = 20250801) -> list[Case]:
    """So many cases of what a capability has: the same in every run."""
    found: list[Case] = []
    run_examples(cases(capability, backend), found.append, examples=count, seed_of=seed)
    return found


def lighter(cases: Sequence[Case]) -> list[Case]:
    """The lighter three fifths of a few cases, and all of many.

    The others take three quarters of the time. Large batches are left to the tests that run long, and to tests/fuzz.
    """
    return sorted(cases, key=_weight)[: -(-3 * len(cases) // 5)] if len(cases) <= FEW else list(cases)


def _weight(case: Case) -> int:
    """Elements of queries, keys and values, and products of both, in all steps."""
    geometry = case.geometry
    query, cached = geometry.q_heads * geometry.head_dim_qk, geometry.head_dim_qk + geometry.head_dim_vo
    return sum(
        step.padded_tokens * query
        + sum(
            request.kv_len * (geometry.kv_heads * cached + geometry.q_heads * request.q_len)
            for request in step.requests
        )
        for step in case.steps
    )


def in_memory(cases: Sequence[Case]) -> list[Case]:
    """The `cases` whose pools have no hole: most of such a pool has no memory, and can't be written down."""
    return [case for case in cases if not case.pages.hole]


def narrowest(cases: Sequence[Case], count: int) -> list[Case]:
    """The `count` cases with the fewest elements in a token's queries: buffers of wide ones take megabytes."""
    return sorted(cases, key=lambda case: case.geometry.q_heads * case.geometry.head_dim_qk)[:count]


def run(case: Case | CallCase, backend: str | Backend | None = None) -> Verdict:
    """Run a case in this process, which has to survive it, on its own backend or on another one."""
    if backend is None or isinstance(backend, str):
        return Execution(Task(case=case, backend=backend or case.backend), lambda _: None).run()
    return Execution(Task(case=case, backend=case.backend), lambda _: None, backend=backend).run()


def passed(case: Case, backend: str | Backend | None = None) -> Verdict:
    """The verdict of `run`, of which it checks that the case ran and nothing was observed."""
    verdict = run(case, backend)
    found = (verdict.unsupported, verdict.observations)
    assert found == (None, ()), (found, case)
    return verdict


def with_nan_queries(calls: CallCase) -> CallCase:
    """Calls that were traced, with NaN in every element of their buffer "query"."""
    (query,) = (buffer for buffer in calls.buffers if buffer.name == "query")
    content = torch.full((query.size,), torch.nan, dtype=query.dtype.torch_dtype).view(torch.uint8).numpy().tobytes()
    spoilt = replace(query, bits=pack(content), values=None)
    return replace(calls, buffers=tuple(spoilt if buffer is query else buffer for buffer in calls.buffers))
